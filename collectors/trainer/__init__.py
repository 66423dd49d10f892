"""The bundled trainer: a small language model, real text and real collectives, with optional planted faults.

``options`` and ``faults`` import only the standard library, because the command line reads them without torch.
"""
