"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: options of topics and groups."""

from __future__ import annotations

from typing import Any

from pymq.core.message import AlterTopic
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.metadata.topic_config import TopicConfig
from pymq.errors import ConfigError, PymqError
from pymq.kafka.codes import Code, code_of
from pymq.kafka.handlers.share import options as group_options
from pymq.kafka.shared import options
from pymq.kafka.shared.controllers import ask_controller, load_brokers
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Steps
from pymq.kafka.shared.topic_cache import load_topic
from pymq.kafka.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsResourceResult,
    DescribeConfigsResponseDescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)

TOPIC, BROKER, GROUP = 2, 4, 32  # kinds of resources
SET, DELETE = 0, 1  # operations on an option
_TOPIC_OPTION, _STATIC_BROKER_OPTION, _DEFAULT = 1, 4, 5  # where a value comes from

_CONSTANT: tuple[Code, str | None] = (
    Code.INVALID_REQUEST,
    "only topics have options that can be changed",
)
_Result = DescribeConfigsResponseDescribeConfigsResourceResult


def describe_configs(context: GateContext, m: DescribeConfigsRequest, call: KafkaCall) -> Steps:
    """Describe the options of topics, and the few options of a broker or a group."""
    del call
    answer = DescribeConfigsResponse()
    for resource in m.resources:
        found: list[_Result] | tuple[Code, str]
        if resource.resource_type == TOPIC:
            found = yield from _topic_options(context, resource)
        elif resource.resource_type == BROKER:
            yield from load_brokers(context)
            found = _broker_options(context, resource)
        elif resource.resource_type == GROUP:
            found = [
                _Result(name, fixed, True, _DEFAULT, config_type=kind, documentation=None)
                for name, (fixed, kind) in group_options.FIXED.items()
                if _wanted(resource, name)
            ]
        else:
            found = Code.INVALID_REQUEST, f"resources of type {resource.resource_type}: none"
        code, why = found if isinstance(found, tuple) else (Code.NONE, None)
        answer.results.append(
            DescribeConfigsResponseDescribeConfigsResult(
                int(code),
                why,
                resource.resource_type,
                resource.resource_name,
                found if isinstance(found, list) else [],
            )
        )
    return answer


def _wanted(resource: DescribeConfigsRequestDescribeConfigsResource, name: str) -> bool:
    keys = resource.configuration_keys
    return keys is None or not keys or name in keys


def _topic_options(
    context: GateContext, resource: DescribeConfigsRequestDescribeConfigsResource
) -> Steps:
    found = yield from load_topic(context, resource.resource_name)
    if not isinstance(found, TopicMetadata):
        return code_of(found), found.message
    results, plain = [], TopicConfig()
    for name, option in options.OPTIONS.items():
        value = getattr(found.config, option.name)
        source = _DEFAULT if value == getattr(plain, option.name) else _TOPIC_OPTION
        if _wanted(resource, name):
            results.append(
                _Result(
                    name,
                    option.show(value),
                    False,
                    source,
                    config_type=option.kind,
                    documentation=None,
                )
            )
    for name, (fixed, kind) in options.FIXED.items():
        if _wanted(resource, name):
            results.append(
                _Result(name, fixed, True, _DEFAULT, config_type=kind, documentation=None)
            )
    return results


def _broker_options(
    context: GateContext, resource: DescribeConfigsRequestDescribeConfigsResource
) -> list[_Result] | tuple[Code, str]:
    nodes = {str(each.node) for each in context.endpoints.values()}
    if resource.resource_name not in nodes:
        return Code.INVALID_REQUEST, f"there is no broker {resource.resource_name}"
    own = {
        "auto.create.topics.enable": (str(context.auto_create).lower(), options.BOOLEAN),
        "num.partitions": (str(context.default_partitions), options.INT),
        "default.replication.factor": (str(context.default_replicas), options.INT),
    }
    return [
        _Result(name, text, True, _STATIC_BROKER_OPTION, config_type=kind, documentation=None)
        for name, (text, kind) in own.items()
        if _wanted(resource, name)
    ]


# --- changes ------------------------------------------------------------------------------------


def alter_configs(context: GateContext, m: AlterConfigsRequest, call: KafkaCall) -> Steps:
    """Set all options of topics: options that the request does not name get their defaults."""
    del call
    answer = AlterConfigsResponse()
    for resource in m.resources:
        code, why = _CONSTANT
        if resource.resource_type == GROUP:
            code, why = _keep([(each.name, each.value) for each in resource.configs])
        elif resource.resource_type == TOPIC:
            try:
                given = options.read_all([(each.name, each.value) for each in resource.configs])
            except ConfigError as error:
                code, why = code_of(error), error.message
            else:
                wanted = options.defaults() | given
                code, why = yield from _alter(
                    context, resource.resource_name, wanted, m.validate_only
                )
        answer.responses.append(
            AlterConfigsResponseAlterConfigsResourceResponse(
                int(code), why, resource.resource_type, resource.resource_name
            )
        )
    return answer


def incremental_alter_configs(
    context: GateContext, m: IncrementalAlterConfigsRequest, call: KafkaCall
) -> Steps:
    """Set some options of topics, or reset them to their defaults."""
    del call
    answer = IncrementalAlterConfigsResponse()
    for resource in m.resources:
        code, why = _CONSTANT
        if resource.resource_type == GROUP:
            code, why = _keep(
                [
                    (each.name, each.value if each.config_operation == SET else None)
                    for each in resource.configs
                ]
            )
        elif resource.resource_type == TOPIC:
            try:
                wanted = _changes(resource.configs)
            except ConfigError as error:
                code, why = code_of(error), error.message
            else:
                code, why = yield from _alter(
                    context, resource.resource_name, wanted, m.validate_only
                )
        answer.responses.append(
            IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                int(code), why, resource.resource_type, resource.resource_name
            )
        )
    return answer


def _keep(configs: list[tuple[str, str | None]]) -> tuple[Code, str | None]:
    """Return the code for changes of a group's options, which have to keep their values."""
    try:
        for name, text in configs:
            group_options.check(name, text)
    except ConfigError as error:
        return code_of(error), error.message
    return Code.NONE, None


def _changes(configs: list[IncrementalAlterConfigsRequestAlterableConfig]) -> dict[str, Any]:
    """Return the changed options by their names in pymq.

    Raises:
        ConfigError: pymq refuses one of the changes.
    """
    given = list[tuple[str, str | None]]()
    for each in configs:
        if each.config_operation not in (SET, DELETE):
            raise ConfigError(f"{each.name}: only SET and DELETE are supported")
        given.append((each.name, each.value if each.config_operation == SET else None))
    return options.read_all(given)


def _alter(context: GateContext, topic: str, wanted: dict[str, Any], validate_only: bool) -> Steps:
    """Change options of a topic; return the code, and the reason of a refusal."""
    found = yield from load_topic(context, topic)
    if isinstance(found, PymqError):
        return code_of(found), found.message
    if not validate_only and wanted:
        answer = yield from ask_controller(context, lambda r: AlterTopic(r, topic, wanted))
        context.topics.drop(topic)
        if answer.error is not None:
            return code_of(answer.error), answer.error.message
    return Code.NONE, None
