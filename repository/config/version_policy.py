"""The versions of a model that its configuration selects (ModelConfig.version_policy)."""

from collections.abc import Iterable

from tritonclient.grpc.model_config_pb2 import ModelConfig


def select(config: ModelConfig, available: Iterable[int]) -> list[int]:
    """Return the available versions that the configuration selects, ascending.

    Without a policy, the latest version is selected, as in Triton. `latest {}` selects no version, because its number is 0.
    """
    versions = sorted(available)
    policy = config.version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return versions
    if kind == "specific":
        wanted = set(policy.specific.versions)
        return [version for version in versions if version in wanted]
    count = policy.latest.num_versions if kind == "latest" else 1
    return versions[max(0, len(versions) - count) :]


def missing(config: ModelConfig, available: Iterable[int]) -> list[int]:
    """Return the versions that a `specific` policy names but that do not exist."""
    if config.version_policy.WhichOneof("policy_choice") != "specific":
        return []
    return sorted(set(config.version_policy.specific.versions) - set(available))


def set_specific(config: ModelConfig, versions: Iterable[int]) -> None:
    """Pin the configuration to exactly these versions."""
    config.version_policy.specific.versions[:] = sorted(set(versions))


def describe(config: ModelConfig) -> str:
    """Return the policy in a few words, for a page or an audit entry."""
    policy = config.version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return "all versions"
    if kind == "specific":
        numbers = ", ".join(str(version) for version in sorted(policy.specific.versions))
        return f"version {numbers}" if len(policy.specific.versions) == 1 else f"versions {numbers}"
    count = policy.latest.num_versions if kind == "latest" else 1
    return "the latest version" if count == 1 else f"the latest {count} versions"
