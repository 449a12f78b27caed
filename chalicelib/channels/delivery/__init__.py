"""The way out for notices: from the bus to one message per channel, and from there to the receivers."""
