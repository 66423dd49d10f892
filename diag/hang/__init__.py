"""Hang triage: who is at fault, from logs and dumps."""
