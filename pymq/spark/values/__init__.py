"""Values with a schema as columns of structs: JSON, Avro, Arrow and Protocol Buffers."""
