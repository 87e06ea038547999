"""A Trainer as its documentation shows it, on synthetic data; it knows nothing of hpcrun."""

import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Counting(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        time.sleep(0.02)
        tokens = (torch.arange(16) * (1 + index % 3) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Counting())
    checkpoint = arguments.resume_from_checkpoint
    if checkpoint is None and Path(arguments.output_dir).is_dir():
        checkpoint = get_last_checkpoint(arguments.output_dir)
    print(f"ranks {arguments.world_size}, from {checkpoint}", flush=True)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    main()
