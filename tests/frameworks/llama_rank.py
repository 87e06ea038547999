"""One rank with a small Llama of Hugging Face's, made from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.run.rank import RANK, main
from tests.run.weights.weights_rank import VOCABULARY, WeightsRank, cost, tokens


class LlamaRank(WeightsRank):
    """Trains it, perhaps divided by AutoTP, and reads what was exported as users do."""

    def llama(self, stage: int, tensor: int, weights: str | None = None) -> None:
        """Begin with a new engine, perhaps with exported ``weights``."""
        torch.manual_seed(0)
        if weights is not None:
            model = transformers.AutoModelForCausalLM.from_pretrained(weights)
        else:
            model = transformers.LlamaForCausalLM(
                transformers.LlamaConfig(
                    vocab_size=VOCABULARY + 1,  # AutoTP divides it
                    hidden_size=16,
                    intermediate_size=32,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    tie_word_embeddings=tensor == 1,
                )
            )
        self._begin(model, stage, "fp32", tensor)

    def write_config(self, directory: str) -> None:
        """Write config.json where `hpcrun weights` finds it."""
        if RANK == 0:
            Path(directory).mkdir(parents=True)
            self._engine.module.config.save_pretrained(directory)

    def exported_loss(self, directory: str) -> str:
        """The loss of the plain model that `from_pretrained` makes."""
        model = transformers.AutoModelForCausalLM.from_pretrained(directory)
        tied = model.lm_head.weight is model.model.embed_tokens.weight
        assert tied == model.config.tie_word_embeddings
        with torch.no_grad():
            return float(cost(self._logits(model.eval(), tokens(7)), tokens(7))).hex()

    def _logits(self, model: Any, x: torch.Tensor) -> Any:
        return model(input_ids=x).logits

    def _specs(self) -> dict[str, Any]:
        return {}


if __name__ == "__main__":
    main(LlamaRank)
