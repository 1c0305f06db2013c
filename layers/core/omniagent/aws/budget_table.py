"""Budgets in the turn table: one item (a page) per user and day, `budget#<day>`, changed by atomic updates.

`used` is spent plus reserved tokens: one condition on it admits a turn. `m<minute>` counts the requests of a minute,
`r#<id>` is an open reservation (`<tokens>@<minute>`), `d#<id>` a cost that a repair or a charge recorded
(`<tokens>~<estimated>`). An item fits into one write unit (1 KB) with up to about 30 open reservations.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from omniagent.aws.dynamo_table import DynamoTable, item_key
from omniagent.aws.json_api import AwsJson
from omniagent.settings import Budget
from omniagent.tracing import SpanKind, trace_method
from omniagent.turns.ledger import Cost, Ledger, Moment, Reservation, Spending

PAGE_LIFE_SECONDS = 2 * 24 * 3600
"""How long a page is kept after its day: its last turn may be settled late, or repaired the day after."""
_FORGOTTEN_MINUTES = range(2, 18)
"""Ages of the counters that a request removes. A longer pause leaves one behind, so an item has at most 90."""

Item = dict[str, Any]


class DynamoLedger(Ledger):
    """The budgets of all users, in the turn table."""

    def __init__(self, table: str, *, api: AwsJson | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._table = DynamoTable(table, api)

    async def extend(self, held: Reservation, budget: Budget, tokens: int) -> Reservation:
        more = replace(held, tokens=held.tokens + tokens, minute=self.now().minute)
        update = _Update()
        update.add("used", tokens)
        update.put(_open(held), _open_value(more))
        update.require(_open(held), "=", _open_value(held))
        update.require("used", "<", budget.tokens_per_day)
        refused = await self._write(held, update)
        if refused is not None and refused.get(_known(held)) == {"S": _known_value(Cost())}:
            refused = await self._reopen(more, budget)
        # If equal, it is our own write: the first response was lost, and the request was retried.
        if refused is not None and refused.get(_open(held)) != {"S": _open_value(more)}:
            limits = Budget(tokens_per_day=budget.tokens_per_day)
            if (refusal := _spending(refused, held, self.now()).refusal(limits)) is not None:
                raise refusal
        return more

    async def give_back(self, held: Reservation) -> None:
        is_counted = held.is_counted and held.minute == self.now().minute
        update = _Update()
        if is_counted:
            update.add(_minute(held.minute), -1)
        if held.tokens:
            update.add("used", -held.tokens)
            update.remove(_open(held))
            update.require(_open(held), "=", _open_value(held))
        if held.tokens or is_counted:
            await self._write(held, update)

    async def charge(self, user_id: str, charge_id: str, cost: Cost) -> None:
        moment = self.now()
        page = Reservation(user_id, moment.day, charge_id, 0, moment.minute)
        update = _Update()
        update.spend(cost)
        update.put(_known(page), _known_value(cost))
        update.put("expires_at", _expiry(moment))
        update.require_missing(_known(page))
        await self._write(page, update)

    async def forget(self, user_id: str) -> None:
        moment = self.now()
        pages = await self._table.keys_of(_page_key(user_id, "")["session_id"]["S"])
        for key in pages["Items"]:
            if key != _page_key(user_id, moment.day):
                await self._table.call("DeleteItem", Key=key)
                continue
            await self._table.call(
                "UpdateItem",
                Key=key,
                UpdateExpression="SET expires_at = :end",
                ConditionExpression="attribute_exists(session_id)",
                ExpressionAttributeValues={":end": {"N": str(int(moment.next_day.timestamp()))}},
            )

    async def aclose(self) -> None:
        await self._table.aclose()

    async def _reserve(self, held: Reservation, budget: Budget, moment: Moment) -> tuple[Spending, bool]:
        update = _Update()
        update.put("expires_at", _expiry(moment))
        if held.is_counted:
            update.add(_minute(moment.minute), 1)
            update.remove(*(_minute(moment.minute - ago) for ago in _FORGOTTEN_MINUTES if ago <= moment.minute))
            update.require_below(_minute(moment.minute), budget.requests_per_minute)
        if budget.tokens_per_day:
            update.require_below("used", budget.tokens_per_day)
        if held.tokens:
            update.add("used", held.tokens)
            update.put(_open(held), _open_value(held))
            update.require_missing(_open(held))
        answer = await self._update(held, update, ReturnValues="ALL_NEW")
        if not answer.get("lost"):
            return _spending(answer["Attributes"], held, moment), False
        page = answer["item"] or {}
        # Our own write: the first response was lost, and the request was retried.
        is_ours = held.tokens > 0 and _open(held) in page
        return _spending(page, held, moment), not is_ours

    async def _settle(self, held: Reservation, cost: Cost, *, by_owner: bool) -> None:
        refused = await self._close(held, cost, by_owner=by_owner)
        while refused is not None and _open(held) in refused:  # the reservation was extended since
            held = _reservation(held, held.id, refused[_open(held)]["S"])
            refused = await self._close(held, cost, by_owner=by_owner)
        if refused is not None and _known(held) in refused:
            await self._settle_rest(held, cost, refused[_known(held)]["S"], by_owner=by_owner)

    async def _close(self, held: Reservation, cost: Cost, *, by_owner: bool) -> Item | None:
        update = _Update()
        update.spend(cost, reserved=held.tokens)
        update.remove(_open(held))
        if not by_owner:
            update.put(_known(held), _known_value(cost))
        update.require(_open(held), "=", _open_value(held))
        return await self._write(held, update)

    async def _reopen(self, held: Reservation, budget: Budget) -> Item | None:
        """Reserve again what was released as stale."""
        update = _Update()
        update.add("used", held.tokens)
        update.put(_open(held), _open_value(held))
        update.remove(_known(held))
        update.require(_known(held), "=", _known_value(Cost()))
        update.require("used", "<", budget.tokens_per_day)
        return await self._write(held, update)

    async def _settle_rest(self, held: Reservation, cost: Cost, known: str, *, by_owner: bool) -> None:
        """Add the difference to the cost that an earlier settlement recorded, once."""
        tokens, _, estimated = known.partition("~")
        update = _Update()
        update.spend(cost - Cost(int(tokens), int(estimated)))
        if by_owner:
            update.remove(_known(held))
        else:
            update.put(_known(held), _known_value(cost))
        update.require(_known(held), "=", known)
        await self._write(held, update)

    async def _page(self, user_id: str, day: str, moment: Moment) -> Spending:
        answer = await self._table.call("GetItem", Key=_page_key(user_id, day), ConsistentRead=True)
        return _spending(answer.get("Item") or {}, Reservation(user_id, day, "", 0, moment.minute), moment)

    async def _write(self, held: Reservation, update: "_Update") -> Item | None:
        """Update the reservation's page. Returns the current page if a condition failed, otherwise None."""
        answer = await self._update(held, update)
        return (answer["item"] or {}) if answer.get("lost") else None

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.budget")
    async def _update(self, held: Reservation, update: "_Update", **options: Any) -> Item:
        return await self._table.call(
            "UpdateItem",
            Key=_page_key(held.user_id, held.day),
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **options,
            **update.arguments(),
        )


class _Update:
    """The arguments of one UpdateItem."""

    def __init__(self) -> None:
        self._clauses: dict[str, list[str]] = {"SET": [], "ADD": [], "REMOVE": []}
        self._conditions: list[str] = []
        self._names: dict[str, str] = {}
        self._values: dict[str, Item] = {}

    def put(self, name: str, value: str | int) -> None:
        self._clauses["SET"].append(f"{self._name(name)} = {self._value(value)}")

    def add(self, name: str, amount: int) -> None:
        self._clauses["ADD"].append(f"{self._name(name)} {self._value(amount)}")

    def spend(self, cost: Cost, *, reserved: int = 0) -> None:
        """Add the tokens spent and remove those reserved for them."""
        self.add("used", cost.tokens - reserved)
        self.add("spent", cost.tokens)
        self.add("estimated", cost.estimated)

    def remove(self, *names: str) -> None:
        self._clauses["REMOVE"] += map(self._name, names)

    def require(self, name: str, operator: str, value: str | int) -> None:
        self._conditions.append(f"{self._name(name)} {operator} {self._value(value)}")

    def require_below(self, name: str, limit: int) -> None:
        self._conditions.append(
            f"(attribute_not_exists({self._name(name)}) OR {self._name(name)} < {self._value(limit)})"
        )

    def require_missing(self, name: str) -> None:
        self._conditions.append(f"attribute_not_exists({self._name(name)})")

    def arguments(self) -> dict[str, Any]:
        clauses = (f"{verb} {', '.join(items)}" for verb, items in self._clauses.items() if items)
        condition = {"ConditionExpression": " AND ".join(self._conditions)} if self._conditions else {}
        return {
            "UpdateExpression": " ".join(clauses),
            "ExpressionAttributeNames": {placeholder: name for name, placeholder in self._names.items()},
            "ExpressionAttributeValues": self._values,
            **condition,
        }

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"#n{len(self._names)}")

    def _value(self, value: str | int) -> str:
        placeholder = f":v{len(self._values)}"
        self._values[placeholder] = {"S": value} if isinstance(value, str) else {"N": str(value)}
        return placeholder


def _page_key(user_id: str, day: str) -> Item:
    """Not under the user's id, whose items are erased with the user: deleting an account must not refill its budget."""
    return item_key(f"budget#{user_id}", f"budget#{day}")


def _minute(minute: int) -> str:
    return f"m{minute}"


def _open(held: Reservation) -> str:
    return f"r#{held.id}"


def _open_value(held: Reservation) -> str:
    return f"{held.tokens}@{held.minute}"


def _known(held: Reservation) -> str:
    return f"d#{held.id}"


def _known_value(cost: Cost) -> str:
    return f"{cost.tokens}~{cost.estimated}"


def _expiry(moment: Moment) -> int:
    return int(moment.next_day.timestamp()) + PAGE_LIFE_SECONDS


def _reservation(page: Reservation, reservation_id: str, value: str) -> Reservation:
    tokens, _, minute = value.partition("@")
    return Reservation(page.user_id, page.day, reservation_id, int(tokens), int(minute))


def _spending(item: Item, page: Reservation, moment: Moment) -> Spending:
    def number(name: str) -> int:
        return int(item.get(name, {"N": "0"})["N"])

    return Spending(
        moment,
        requests=number(_minute(moment.minute)),
        spent=Cost(number("spent"), number("estimated")),
        reserved=number("used") - number("spent"),
        open=tuple(
            _reservation(page, name.removeprefix("r#"), value["S"])
            for name, value in item.items()
            if name.startswith("r#")
        ),
        released=tuple(replace(page, id=name.removeprefix("d#")) for name in item if name.startswith("d#")),
    )
