"""Every error of the package, by who must act on it.

OmniAgentError
├── RequestError                the caller changes the request
│   ├── MalformedRequest        400
│   ├── Unauthenticated         401
│   ├── Forbidden               403
│   ├── NotFound                404
│   │   ├── SessionErased       the session, or its user, is being deleted
│   │   └── UnknownRequest      there is no request with this id
│   ├── NotAllowed              405
│   ├── TurnInProgress          409, with Retry-After
│   ├── NoRunningTurn           409
│   ├── NotRegenerable          409
│   ├── NotWaiting              409, the turn is no longer waiting
│   ├── ReplyConflict           409, the request already has a different reply
│   ├── RequestExpired          410
│   ├── PayloadTooLarge         413
│   ├── UnsupportedMediaType    415
│   ├── InvalidRequest          422
│   ├── TooManyTurns            429, with Retry-After
│   ├── QueueFull               429, with Retry-After
│   ├── TooManyReaders          429, with Retry-After
│   └── BudgetExceeded          429, with Retry-After and the reset time: the tokens of a day
│       └── TooManyRequests     the requests of a minute
├── ConfigurationError          the developer or operator fixes a setting
│   ├── UnknownModelError
│   ├── ContractError           a document class lacks a field that the runtime needs
│   └── RegistryMisconfigured   the table of running turns does not exist, or may not be used
├── ModelError                  the turn ends with the fallback answer
│   ├── ModelUnavailable        unreachable, overloaded or silent
│   ├── ModelAuthError          the key was refused
│   ├── ModelRejected           the request was refused
│   ├── ModelStreamBroken       the stream ended early
│   ├── EmptyAnswer
│   ├── AnswerTooLong
│   ├── InvalidOutput           the answer does not match Agent(output=…)
│   └── StepLimitReached
├── ToolError                   the model reads it and can correct itself
│   ├── UnknownTool
│   ├── InvalidArguments
│   ├── ToolTimeout
│   ├── ToolFailed
│   ├── ToolsBusy               too many sync tools are still running
│   ├── TooManyToolCalls        more calls in one step or turn than are allowed
│   ├── ToolNotStarted          the deadline would pass before the tool's timeout
│   └── ToolOutcomeUnknown      the process that ran the tool died
├── StorageError                503
│   ├── StorageUnavailable      MongoDB cannot be reached
│   ├── StorageConflict         a unique key or a condition was violated
│   ├── StorageRejected         MongoDB refused the operation: a bug or a wrong setting
│   └── TurnLost                another process took the turn over; writes are refused
├── RegistryUnavailable         503, the table of running turns cannot be reached
│   └── RegistryMisconfigured   500, see above
├── QueueUnavailable            503, a queue cannot be reached
│   └── NoQueue                 503, none is configured
│       └── NoRunQueue          503, none for the run function
├── WebhookFailed               502, the operator's server did not accept an event
├── SecretsUnavailable          503, Secrets Manager cannot be reached
└── IdentityUnavailable         503, the issuer's keys cannot be fetched

`str(error)` is for the log. `error.public` is the only text that may leave the process.
"""

from omniagent.errors.caller_errors import *  # noqa: F403
from omniagent.errors.developer_errors import *  # noqa: F403
from omniagent.errors.model_errors import *  # noqa: F403
from omniagent.errors.omniagent_error import *  # noqa: F403
from omniagent.errors.service_errors import *  # noqa: F403
