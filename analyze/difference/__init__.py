"""What differs between two runs: settings, versions, transports, links, groups, hosts, calls, step time."""
