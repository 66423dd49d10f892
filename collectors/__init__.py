"""What runs inside the training processes: collectors, fault injection and the bundled trainer.

Imported as ``diag.collectors``. Needs the standard library and torch (2.6 or later); NVML is used where it is present.
"""
