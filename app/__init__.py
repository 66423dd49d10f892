"""The Streamlit dashboard, imported as ``diag.app``. It draws what ``diag`` computed and computes nothing itself."""
