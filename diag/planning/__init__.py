"""Estimates a training's memory, communication and devices before it runs, by formulas."""
