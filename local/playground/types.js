/**
 * The shapes that travel between the modules. Messages and events are the AI SDK's; see DESIGN.md, section 5.
 *
 * @typedef {{ type: string, [key: string]: any }} StreamEvent
 *
 * @typedef {{ type: "step-start" }} StepPart
 * @typedef {object} Block What is written bit by bit. The times are this page's.
 * @property {string} text
 * @property {"streaming" | "done"} [state]
 * @property {number} [startedAt]
 * @property {number} [durationMs]
 * @typedef {{ type: "text" } & Block} TextPart
 * @typedef {{ type: "reasoning" } & Block} ReasoningPart
 * @typedef {"approval-requested" | "approval-responded" | "output-denied"} ApprovalState
 * @typedef {"input-streaming" | "input-available" | "output-available" | "output-error" | ApprovalState} ToolState
 * @typedef {object} ToolPart
 * @property {string} type `tool-NAME`
 * @property {string} toolCallId
 * @property {ToolState} state
 * @property {unknown} [input]
 * @property {string} [rawInput] What the model wrote instead of JSON.
 * @property {string} [inputText] The arguments as far as the model has written them.
 * @property {unknown} [output]
 * @property {string} [errorText]
 * @property {Approval} [approval]
 * @property {boolean} [waits] It is the client that has to run it.
 * @property {string} [errorDetail] What the model was told, which only a local stack's trace says.
 * @property {number} [durationMs] Which only a local stack's trace says.
 *
 * @typedef {object} Approval
 * @property {string} id
 * @property {boolean} [approved]
 * @property {string} [reason]
 * @property {string} [requestReason]
 * @property {string} [answeredAt]
 * @property {"user" | "other"} [answeredBy]
 *
 * @typedef {{ type: "source-url" | "source-document", sourceId: string, url?: string, title?: string }} SourcePart
 * @typedef {StepPart | TextPart | ReasoningPart | ToolPart | SourcePart} Part
 *
 * @typedef {object} Usage
 * @property {number} inputTokens
 * @property {number} outputTokens
 * @property {number} totalTokens
 * @property {number} [cachedInputTokens]
 * @property {number} [cacheWriteTokens]
 * @property {number} [reasoningTokens]
 *
 * @typedef {object} Feedback What the user thinks of an answer.
 * @property {"up" | "down"} [rating]
 * @property {string} [text]
 *
 * @typedef {object} Metadata
 * @property {string} [sessionId]
 * @property {number} [turnNumber]
 * @property {"complete" | "waiting" | "cancelled" | "failed" | "interrupted"} [status]
 * @property {string} [finishReason]
 * @property {string} [model]
 * @property {number} [stepCount]
 * @property {Usage} [usage]
 * @property {number} [durationMs]
 * @property {number} [firstTokenMs]
 * @property {"cancelled" | "deadline" | "interrupted" | "unanswered" | "expired"} [abortReason]
 * @property {string} [stopReason]
 * @property {Feedback} [feedback]
 * @property {Record<string, { at: string, by: "user" | "other" }>} [decisions] By the id of the call.
 * @property {string} [nodeId] Of a stored message, unique in its chat.
 * @property {Siblings} [siblings] Where there are other versions of it.
 *
 * @typedef {{ index: number, count: number, previous?: string, next?: string }} Siblings Their nodes, and its own place.
 *
 * @typedef {object} Request Something that waits for a person, in any chat.
 * @property {string} id
 * @property {"approval" | "output"} kind
 * @property {string} tool
 * @property {unknown} input
 * @property {string | null} reason
 * @property {string} user
 * @property {string | null} sessionId Null if it is another user's.
 *
 * @typedef {object} Message
 * @property {string} id
 * @property {"user" | "assistant"} role
 * @property {Part[]} parts
 * @property {Metadata} metadata
 *
 * @typedef {object} Session
 * @property {string} id
 * @property {string | null} name
 * @property {number} latestTurnNumber
 * @property {boolean} answering
 * @property {string | null} [agent] Its name, where there are several.
 * @property {boolean} waiting
 * @property {string} createdAt
 * @property {string} updatedAt
 * @property {string | null} [snippet] In a search: the words around a match.
 *
 * @typedef {object} Summary
 * @property {string} content
 * @property {number} tokenCount
 * @property {number} startTurnNumber
 * @property {number} endTurnNumber
 * @property {string} createdAt
 *
 * @typedef {object} StackInfo What `/local/info` tells of a stack on this machine.
 * @property {string} model
 * @property {boolean} offline
 * @property {boolean} name_sessions Whether the server names a chat after its first answer.
 * @property {number} context_max_tokens
 * @property {number} context_max_turns
 * @property {number} window_tokens The window is full at so many tokens.
 * @property {number} lease_seconds Without a sign of life for so long, a turn is taken over.
 * @property {AgentTitle[]} [agents] The default first.
 * @property {boolean} [has_rule] Whether the project's rule chooses where nobody did.
 *
 * @typedef {{ id?: string, title?: string, description?: string, suggestions?: string[], problem?: { title: string, detail: string } }} AgentTitle
 *
 * @typedef {{ function: string, pid: number, state: string, here: boolean }} Process
 * @typedef {object} Processes What `/local/processes` tells.
 * @property {Process[]} processes
 * @property {{ of: string, records: number, runs: number, age_ms: number } | null} journal Of the newest turn, `of`.
 *
 * @typedef {object} ModelOptions What `/local/models` tells.
 * @property {string} vendor Who answers this tab: `stack` for its own model.
 * @property {boolean} has_offline
 * @property {string | null} agent_model The model that the agent's source names.
 * @property {{ url: string, models: string[] } | null} ollama
 *
 * @typedef {{ name: string, description: string, parameters: object }} AgentTool
 * @typedef {object} AgentDescription What `/local/agent` tells; with `error` nothing else.
 * @property {string} [error]
 * @property {string} [title]
 * @property {string} [model]
 * @property {boolean} [offline] Whether the offline model stands in for it.
 * @property {string} [instructions]
 * @property {string | null} [made_by] The functions that write instructions.
 * @property {AgentTool[]} [tools]
 *
 * @typedef {object} Span
 * @property {string} id
 * @property {string | null} parent_id
 * @property {string} name
 * @property {string} kind
 * @property {number} start_ms
 * @property {number} duration_ms
 * @property {string} status
 * @property {Record<string, unknown>} attributes
 * @property {{ name: string, at_ms: number, attributes: Record<string, unknown> }[]} events
 * @property {string} [cause] What a tool raised, where that is not what the model was told.
 */

export {};
