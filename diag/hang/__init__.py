"""Hang triage: which rank is at fault, from logs and dumps."""
