"""Errors that the developer or operator must fix."""

from omniagent.errors.omniagent_error import OmniAgentError


class ConfigurationError(OmniAgentError):
    """A setting is missing or wrong. The log names it."""

    public = "The service is misconfigured. Its operator can find the cause in the log."


class UnknownModelError(ConfigurationError):
    """No provider is registered for the model's name."""

    code = "configuration_error"


class ContractError(ConfigurationError):
    """A document class violates the contract of `DocumentModels`."""

    code = "configuration_error"
