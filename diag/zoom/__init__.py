"""All ranks over time at any zoom: sums once, then reads that cost as much as there are pixels. Pure."""
