"""The bundled trainer: a small language model, real text and real collectives, with faults that can be planted in it.

``options`` and ``faults`` import the standard library only, because the command line reads them without torch.
"""
