"""Chat templates that people write: rendered as they are, or refused."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from tests.properties.examples import examples
from training_core.data.template_check import require_template
from training_core.errors import ConfigError

pieces = st.sampled_from(
    [
        "{{ bos_token }}",
        "{{ messages[0]['content'] }}",
        "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}",
        "{{ messages[5] }}",
        "{{ nothing.at.all }}",
        "{{ 'a' + 1 }}",
        "{{ raise_exception('no') }}",
        "{% for i in range(5000) %}{% for j in range(5000) %}{% endfor %}{% endfor %}",
        "{% if messages %}",
        "{% endif %}",
        "{{ '",
        "hello",
    ]
)


@examples(60)
@given(st.lists(pieces, min_size=1, max_size=4))
def test_a_template_renders_the_users_text_or_is_refused(tokenizer, some):
    own = copy.deepcopy(tokenizer)
    own.chat_template = "".join(some)
    try:
        require_template(own)
    except ConfigError as error:
        assert str(error).startswith("the chat template ")
        return
    text = own.apply_chat_template([{"role": "user", "content": "two tea"}], tokenize=False)
    assert "two tea" in text
