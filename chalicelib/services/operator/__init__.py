"""What people order, ask and read: orders, approvals, switches, policies, drills, clusters."""
