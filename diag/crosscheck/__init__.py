"""Our numbers beside those of HolisticTraceAnalysis (HTA), and the analyses that are HTA's: the extra ``hta``."""
