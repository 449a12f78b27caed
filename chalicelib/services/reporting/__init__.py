"""What is recorded and reported of closed Incidents: ledgers, alarms, pages, hardware ledger."""
