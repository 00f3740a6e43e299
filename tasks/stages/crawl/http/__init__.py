"""HTTP: which addresses may be reached, DNS, connections and a client with limits. Knows no robots rules and queues."""
