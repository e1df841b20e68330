"""Stages on a GPU: rows in its memory, inputs through pinned buffers, steps as CUDA graphs."""
