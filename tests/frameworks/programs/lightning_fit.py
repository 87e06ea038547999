"""A LightningModule that is fit as Lightning's documentation shows it, on synthetic data."""

import argparse
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = (self.layer(inputs) - targets).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Pause(Callback):
    def __init__(self, seconds):
        self.seconds = seconds

    def on_train_batch_end(self, *_):
        time.sleep(self.seconds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--max_steps", type=int, default=40)
    parser.add_argument("--ckpt_path")
    parser.add_argument("--pause", type=float, default=0.0)
    arguments = parser.parse_args()

    L.seed_everything(0)
    inputs = torch.randn(512, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    saves = ModelCheckpoint("checkpoints", every_n_train_steps=10, save_last=True, save_top_k=-1)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=arguments.devices,
        num_nodes=arguments.num_nodes,
        max_steps=arguments.max_steps,
        log_every_n_steps=5,
        callbacks=[saves, Pause(arguments.pause)],
        logger=CSVLogger("logs"),
        enable_progress_bar=False,
    )
    environment = type(trainer.strategy.cluster_environment).__name__
    print(f"ranks {trainer.world_size}, {environment}", flush=True)
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    trainer.fit(Regression(), loader, ckpt_path=arguments.ckpt_path)
    print(f"ends at step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
