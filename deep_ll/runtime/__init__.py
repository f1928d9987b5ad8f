"""Where ranks are and how they come to see each other's memory."""
