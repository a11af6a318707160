"""FastStream's middlewares for OpenTelemetry and Prometheus, for :class:`PymqBroker`."""
