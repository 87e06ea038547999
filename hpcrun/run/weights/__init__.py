"""The weights of a checkpoint as one whole model, for other programs; and their average.

In reading order: `averaged_weights` (``optimization.ema``, on the ranks), `saved_weights` (whole
tensors of a checkpoint, whatever divided them).

To read another form of a checkpoint: `saved_weights.collect` decides by the names of the files.
"""
