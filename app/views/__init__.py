"""Pages: each a function that draws one view of a run with Streamlit."""
