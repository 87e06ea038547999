"""The direction of the objective, taken from the name of its metric where that tells it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hpcrun.compile.source.marked_tree import Reporter

_MORE = """
acc accuracy acc1 acc5 ap ar auc aucpr auprc auroc bleu chrf dice em exact f1 gain hits iou
jaccard kappa map mcc meteor mfu miou mrr ndcg pass precision prec psnr r2 recall return returns
reward rewards roc rouge rouge1 rouge2 rougel score spearman pearson ssim success throughput top1
top5 win
"""
_LESS = """
abs_rel bpb bpc bpd brier cer cost crossentropy divergence ece eer err error errors fid kl latency
loss mae mape mse nll perplexity ppl regret rmse ter wer
"""
_KNOWN = {**dict.fromkeys(_MORE.split(), "max"), **dict.fromkeys(_LESS.split(), "min")}
_WORDS = re.compile(r"[A-Za-z]+[0-9]?")


def settle(spec: dict[str, Any], report: Reporter, note: Callable[[str], object]) -> None:
    """Fill in ``objective.mode`` and say so; report a metric of which nobody knows it."""
    objective = spec["objective"]
    if objective is None and spec["checkpoint"]["keep_best"]:
        note(
            "checkpoint.keep_best keeps what has the least 'loss': `objective: {metric: NAME, "
            "mode: max}` names another metric"
        )
    if objective is None or objective["mode"] is not None:
        return
    metric = objective["metric"]
    words = [word.lower() for word in _WORDS.findall(metric)]
    known = {_KNOWN[word] for word in words if word in _KNOWN}
    if len(known) != 1:
        found = f"is not given, and {metric!r} does not tell whether less or more of it is better"
        report.at("objective.mode", found, "accepted are 'min' and 'max'")
        return
    mode = known.pop()
    spec["objective"] = {**objective, "mode": mode}
    if mode == "max":
        note(
            f"objective.mode: max: more of {metric!r} is better; 'mode: max' says so without this "
            "note"
        )
