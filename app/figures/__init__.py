"""Figures: pure functions from the run's layout and a theme to Plotly figures."""
