"""Kills and outages at any moment, while several people talk: nothing acknowledged is lost, nothing is there twice."""

import asyncio
import random

from tests.faults.house import House
from tests.faults.load import Crowd

SEED = 20260501
USERS = 8
TURNS = 60
KILLS = 15


async def test_processes_killed_at_random(house: House) -> None:
    chance = random.Random(SEED)
    async with Crowd(house, USERS, turns=TURNS, seed=SEED):
        kills = 0
        while kills < KILLS:
            await asyncio.sleep(chance.uniform(0.05, 0.5))
            if running := house.emulator.running("chat"):
                house.kill_process(chance.choice(running).pid)
                kills += 1


async def test_servers_gone_one_after_the_other(house: House) -> None:
    async with Crowd(house, 4, turns=16, seed=SEED) as crowd:
        await crowd.hears(4)
        await house.servers.restart_mongod()
        await crowd.hears(4)
        with house.registry.down():
            await crowd.hears(4)
        await crowd.hears(4)
        house.servers.answers.cut()
        await crowd.hears(4)
