"""Compares our numbers with those of HolisticTraceAnalysis (HTA), and runs HTA's own analyses: the extra ``hta``."""
