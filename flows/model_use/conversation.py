"""A conversation with one model, which has its own history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flows.model_use.model_kind import require_kind
from flows.model_use.named_model import NamedModel
from stages.configs.model_config import FrozenModelsConfig
from stages.training.engines import best_device
from training_core.data.chat import encode_prompt
from training_core.data.templates import chat_template
from training_core.errors import DataError
from training_core.messages import Message
from training_core.models import hub
from training_core.rollout.sampling import Sampling
from training_core.rollout.streaming import StreamingPolicy


class Conversation:
    """What a person and a model have said.

    Args:
        model: the model.
        frozen: dtype of the model.

    Attributes:
        name: name of the model.
        has_template: whether the model has a chat template. Without one there is no conversation:
            the model continues each text by itself.
    """

    def __init__(self, model: NamedModel, frozen: FrozenModelsConfig) -> None:
        require_kind(hub.load_config(model.directory), "policy", model.name)
        self.name = model.name
        self._tokenizer = hub.load_tokenizer(model.directory)
        policy = hub.load_policy(model.directory, options=frozen.load_options())
        policy = hub.freeze(policy).to(best_device())
        self._limit = getattr(policy.config, "max_position_embeddings", None)
        self._policy = StreamingPolicy(policy, self._tokenizer)
        self.has_template = bool(self._tokenizer.chat_template)
        if not self.has_template:
            self._tokenizer.chat_template = chat_template("plain")
        self._system: list[Message] = []
        self._history: list[Message] = []

    def reset(self) -> None:
        """Forget everything that was said; the system message stays."""
        self._history.clear()

    def set_system(self, text: str) -> None:
        """Replace the system message; an empty text removes it."""
        self._system = [{"role": "system", "content": text}] if text else []

    def answer(
        self, text: str, sampling: Sampling, *, seed: int, on_text: Callable[[str], object]
    ) -> None:
        """Answer a message, and remember both. What an interrupted answer had said is remembered.

        Args:
            text: message of the person.
            sampling: parameters of sampling.
            seed: of the answer.
            on_text: gets each piece of the answer.

        Raises:
            DataError: if the template refuses the conversation, or it is too long for the model;
                then the message is forgotten.
        """
        said: list[str] = []

        def take(piece: str) -> None:
            said.append(piece)
            on_text(piece)

        asked: Message = {"role": "user", "content": text}
        before = [*self._system, *self._history] if self.has_template else []
        prompt = encode_prompt(self._tokenizer, "of the conversation", [*before, asked])
        room = self._room(len(prompt.input_ids), sampling.max_response_tokens)
        sampling = replace(sampling, max_response_tokens=room)
        try:
            self._policy.respond(prompt, sampling, seed=seed, on_text=take)
        finally:
            answer: Message = {"role": "assistant", "content": "".join(said).strip()}
            self._history += [asked, answer]

    def _room(self, prompt_tokens: int, wanted: int) -> int:
        """Return how many tokens the answer may have."""
        if self._limit is None:
            return wanted
        if prompt_tokens >= self._limit:
            raise DataError(
                f"the conversation has {prompt_tokens} tokens, and {self.name} takes "
                f"{self._limit} with the answer; /reset begins a new one"
            )
        return min(wanted, self._limit - prompt_tokens)
