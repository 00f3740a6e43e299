"""HTTP: permitted addresses, DNS, connections, and a client with limits. Does not depend on robots rules or queues."""
