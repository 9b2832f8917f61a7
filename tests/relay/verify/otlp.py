"""Reads requests to a collector on stdin, one a line, by the protocol's own schema; prints each span's name, kind and status."""

import sys

from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

for line in sys.stdin:
    for resource in Parse(line, ExportTraceServiceRequest()).resource_spans:
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            assert span.trace_id and span.span_id and 0 < span.start_time_unix_nano <= span.end_time_unix_nano, span
            print(span.name, Span.SpanKind.Name(span.kind), Status.StatusCode.Name(span.status.code), sep=", ")
