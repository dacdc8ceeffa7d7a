"""NATS JetStream: a stream that recognises a message for some time, behind pull workers."""
