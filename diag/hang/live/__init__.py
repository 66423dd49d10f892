"""Notices that a running training hangs: the ranks' heartbeats in, a judgement out; and gathers what explains it."""
