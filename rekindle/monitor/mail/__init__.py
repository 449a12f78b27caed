"""The monitor's mailbox: places, messages, requests, the exchange between ranks."""
