"""HTTP: address checks, DNS, connections and a client with limits. Independent of robots rules and queues."""
