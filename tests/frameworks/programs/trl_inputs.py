"""A tiny model with its tokenizer, and a data set, for TRL's own script; made without a network."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = "the cat sat on the mat and looked at the dog"
words = Tokenizer(models.WordLevel(unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
special = ["<unk>", "<s>", "</s>", "<pad>"]
words.train_from_iterator([TEXT], trainers.WordLevelTrainer(special_tokens=special))
names = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), special, strict=True))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
tokenizer.save_pretrained("model")
config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    pad_token_id=3,
)
LlamaForCausalLM(config).save_pretrained("model")
Path("data").mkdir()
Path("data/train.jsonl").write_text((json.dumps({"text": TEXT}) + "\n") * 400)
