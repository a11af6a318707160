"""Parts N and R: servers over sockets, each with its usual Python client and its fastest one."""
