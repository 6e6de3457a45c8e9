"""Folders, globs, samples, bad rows that may be dropped, and mixtures."""

import logging
from collections import Counter
from fractions import Fraction

import datasets
import pytest
from datasets import Dataset, DatasetDict

from stages.configs.data_config import FileDataConfig, HubDataConfig, MixedDataConfig
from stages.datasets import prompts, tables
from stages.datasets.mixing import mixture_order, quotas
from stages.files import write_jsonl
from training_core.errors import DataError


def words(data):
    return [row.prompt[0]["content"] for row in prompts(data)]


def file(path, *texts, **settings):
    write_jsonl(path, [{"prompt": text} for text in texts])
    return FileDataConfig(path=str(path), **settings)


# ------------------------------------------- saved datasets, several files, samples


def test_a_saved_dataset_is_read_from_its_folder(tmp_path):
    Dataset.from_dict({"prompt": ["a", "b"]}).save_to_disk(str(tmp_path / "saved"))
    assert words(FileDataConfig(path=str(tmp_path / "saved"))) == ["a", "b"]
    with pytest.raises(DataError, match="`split` is 'train', but this dataset has none"):
        words(FileDataConfig(path=str(tmp_path / "saved"), split="train"))


def test_a_saved_dataset_with_splits_needs_one_of_them(tmp_path):
    splits = {name: Dataset.from_dict({"prompt": [name]}) for name in ("train", "test")}
    DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    assert words(FileDataConfig(path=str(tmp_path / "saved"), split="test")) == ["test"]
    with pytest.raises(DataError, match="`split` to be one of train, test, found 'None'"):
        words(FileDataConfig(path=str(tmp_path / "saved")))
    DatasetDict({"only": splits["test"]}).save_to_disk(str(tmp_path / "one"))
    assert words(FileDataConfig(path=str(tmp_path / "one"))) == ["test"]


def test_a_folder_that_nobody_saved_and_a_split_of_a_file_say_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"expected a folder that `save_to_disk` wrote.*\*\.jsonl"):
        words(FileDataConfig(path=str(tmp_path)))
    with pytest.raises(DataError, match="a file has none; remove it"):
        words(file(tmp_path / "a.jsonl", "a", split="train"))


class OnThisMachine:
    """The package `datasets`, which reads a folder instead of a repository."""

    def __init__(self, folder):
        self._folder = str(folder)

    def load_dataset(self, repo, *arguments, **options):
        del repo
        return datasets.load_dataset(self._folder, *arguments, **options)


def test_a_dataset_that_is_a_script_is_refused_and_not_run(tmp_path, monkeypatch):
    folder = tmp_path / "trap"
    folder.mkdir()
    (folder / "trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(DataError, match="would be read instead of the hub"):
        words(HubDataConfig.model_construct(repo=str(folder)))
    # There is no network, so that folder stands for a repository of the hub.
    monkeypatch.setattr(tables, "datasets", OnThisMachine(folder))
    with pytest.raises(DataError, match="is a Python script, and such code is never run"):
        words(HubDataConfig(repo="someone/trap"))
    assert not (tmp_path / "ran").exists()


def test_several_files_and_globs_are_read_in_order_and_count_their_own_rows(tmp_path):
    file(tmp_path / "b.jsonl", "b1", "b2")
    file(tmp_path / "a.jsonl", "a1")
    glob = str(tmp_path / "*.jsonl")
    assert words(FileDataConfig(path=glob)) == ["a1", "b1", "b2"]
    both = (str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl"))
    assert words(FileDataConfig(path=both)) == ["b1", "b2", "a1"]
    assert words(FileDataConfig(path=both, limit=2)) == ["b1", "b2"]
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "b1"}, {"prompt": ""}, {"prompt": None}])
    with pytest.raises(DataError, match=r"b\.jsonl, row 3: there is no field 'prompt'"):
        words(FileDataConfig(path=glob))


def test_a_sample_is_of_the_first_rows_in_their_order_and_depends_on_its_seed(tmp_path):
    def sample(seed):
        texts = [f"{i:02}" for i in range(40)]
        return words(file(tmp_path / "a.jsonl", *texts, limit=30, sample=10, sample_seed=seed))

    assert len(sample(0)) == 10
    assert sample(0) == sorted(sample(0)) == sample(0) != sample(1)
    assert max(sample(0)) < "30"
    assert len(words(file(tmp_path / "a.jsonl", "a", "b", sample=9))) == 2


def test_a_hub_dataset_without_a_network_says_so():
    with pytest.raises(DataError, match=r"hub dataset nobody/nothing@main, split 'train'"):
        words(HubDataConfig(repo="nobody/nothing"))


# ------------------------------------------- bad rows

BAD = [{"prompt": "a"}, {"prompt": None}, {"prompt": "b"}, {"prompt": None}]


def test_bad_rows_may_be_dropped_and_are_then_counted_with_their_reasons(tmp_path, caplog):
    write_jsonl(tmp_path / "a.jsonl", BAD)
    path = str(tmp_path / "a.jsonl")
    with caplog.at_level(logging.WARNING):
        assert words(FileDataConfig(path=path, skip_bad_rows=True)) == ["a", "b"]
    assert "2 of 4 rows are bad and were dropped; the first: a.jsonl, row 2: there" in caplog.text
    assert "a.jsonl, row 4: there is no field 'prompt'" in caplog.text
    with pytest.raises(DataError, match="row 2"):
        words(FileDataConfig(path=path))


def test_a_dataset_of_bad_rows_alone_is_an_error_even_if_they_may_be_dropped(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": [{"role": "user", "content": None}]}])
    with pytest.raises(DataError, match=r"every row is bad; the first: a\.jsonl, row 1"):
        words(FileDataConfig(path=str(tmp_path / "a.jsonl"), skip_bad_rows=True))


# ------------------------------------------- mixtures


def counts(sizes, weights, **settings):
    found = mixture_order(sizes, weights, **{"seed": 0, "exhaustion": "first", **settings})
    by_part = Counter(part for part, _ in found)
    return [by_part[i] for i in range(len(sizes))]


def test_shares_are_exact_up_to_rounding_and_add_up():
    # 10 * (5, 3, 2) / 10; 7 * (5, 3, 2) / 10 = 3.5, 2.1, 1.4 -> the largest rest is rounded up
    assert counts([99, 99, 99], [5, 3, 2], size=10) == [5, 3, 2]
    assert counts([99, 99, 99], [5, 3, 2], size=7) == [4, 2, 1]
    thirds = [Fraction(1, 3)] * 3
    assert [quotas(thirds, n) for n in (1, 2, 3)] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("weights", [[1, 1], [1, 3], [0.3, 0.7], [1e-3, 1], [2, 1]])
@pytest.mark.parametrize("sizes", [[7, 30], [30, 7], [1, 100], [5, 5]])
def test_it_ends_with_the_first_part_or_with_the_last(sizes, weights):
    share = [w / sum(weights) for w in weights]
    first, last = (counts(sizes, weights, exhaustion=e) for e in ("first", "all"))
    assert all(n <= size for n, size in zip(first, sizes, strict=True))
    assert all(n >= size for n, size in zip(last, sizes, strict=True))
    for found in (first, last):
        for n, s in zip(found, share, strict=True):
            assert abs(n - s * sum(found)) < 1
    # a part of n rows and share s ends after n / s rows of the mixture
    ends = [n / s for n, s in zip(sizes, share, strict=True)]
    assert min(ends) - 1 < sum(first) <= min(ends) + 1e-6
    assert max(ends) - 1e-6 <= sum(last) < max(ends) + 1


def test_no_row_comes_again_before_all_of_its_part_came():
    found = mixture_order([3, 20], [1, 1], seed=4, exhaustion="all")
    rows = [row for part, row in found if part == 0]
    assert len(rows) == 20
    assert [sorted(rows[i : i + 3]) for i in range(0, 18, 3)] == [[0, 1, 2]] * 6
    assert sorted(row for part, row in found if part == 1) == list(range(20))


def test_the_order_depends_on_the_seed_alone():
    one, again, other = (
        mixture_order([9, 9], [1, 1], seed=s, exhaustion="first") for s in (1, 1, 2)
    )
    assert one == again != other


def test_a_mixture_reads_its_parts_with_their_own_limits(tmp_path):
    part = [
        {"data": file(tmp_path / "a.jsonl", "a1", "a2", "a3", "a4", limit=2)},
        {"data": file(tmp_path / "b.jsonl", *(f"b{i}" for i in range(9))), "weight": 3},
    ]
    data = MixedDataConfig(parts=part, seed=5)
    found = words(data)  # 2 of a need 6 of b
    assert sorted(w for w in found if w < "b") == ["a1", "a2"]
    assert len({w for w in found if w > "b"}) == 6
    assert words(data) == found
    with pytest.raises(DataError, match=r"8.*lower `size`, or set `exhaustion: all`"):
        words(MixedDataConfig(parts=part, size=100))
    assert len(words(MixedDataConfig(parts=part, size=100, exhaustion="all"))) == 100


def test_a_mixture_that_a_tiny_weight_makes_endless_is_refused():
    """The other part would repeat until the tiny share has given its row."""
    with pytest.raises(DataError, match="would have 100,000,001 rows, the limit is 10,000,000"):
        mixture_order([1, 1], [1.0, 1e-8], seed=0, exhaustion="all")
    assert len(mixture_order([1, 1], [1.0, 1e-8], seed=0, exhaustion="all", size=9)) == 9
