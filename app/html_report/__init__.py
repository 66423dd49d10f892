"""The first page of a run as one HTML file that needs no server and no network."""
