"""Bulk copies: fences, waits, slots."""

from .kinds import COPY, LEAGUE, MEMORY, TEAM, Mutant, one, without

READ1 = "if (team.warp() == 0) bulk_await_read<1>();"
OUT = "few many many_bf16"
PUT = "wide few many_bf16"
RING = "constexpr int kRingSlots = 4;"
BYTES_OF_SLOT = "return scratch_.ring_bytes / (kRingSlots * num_warps());"

COPIES = {
    "half_not_sealed": without(COPY, "", "if constexpr (kHasBulk) seal_shared();", "team.sync();"),
    "half_sealed_after_the_barrier": one(
        COPY,
        "if constexpr (kHasBulk) seal_shared(); team.sync();",
        "team.sync(); if constexpr (kHasBulk) seal_shared();",
    ),
    "barriers_not_sealed": without(LEAGUE, "landed() + slot);", "seal_shared();", "}"),
    "barriers_expect_two": one(
        MEMORY,
        "mbarrier.init.shared::cta.b64 [%0], 1;",
        "mbarrier.init.shared::cta.b64 [%0], 2;",
        "few",
        "Hang",
    ),
    "half_awaited_one_late": one(COPY, "bulk_await_read<1>()", "bulk_await_read<2>()", OUT),
    "half_not_awaited": one(COPY, READ1, "", OUT),
    "half_awaited_by_one_lane": one(
        COPY, READ1, "if (team.lane() == 0) bulk_await_read<1>();", OUT
    ),
    "half_not_toggled": without(COPY, "", "team.bulk.half ^= 1;", "}", OUT),
    "half_not_committed": without(COPY, "team.half(), bytes);", "bulk_commit();", "", OUT),
    "slot_awaited_one_late": one(COPY, "bulk_await_read<2>()", "bulk_await_read<3>()", PUT),
    "slot_awaited_two_late": one(COPY, "bulk_await_read<2>()", "bulk_await_read<4>()", PUT),
    "slot_not_awaited": without(COPY, "", "bulk_await_read<2>();", "", PUT),
    "slot_not_committed": without(COPY, "team.slot(load), bytes); }", "bulk_commit();", "", PUT),
    "load_not_awaited": without(
        COPY, "", "mbarrier_await(team.landed(load), load / kRingSlots % 2);", ""
    ),
    "load_awaited_with_the_other_parity": one(
        COPY, "load / kRingSlots % 2", "(load / kRingSlots + 1) % 2", sign="Race|Hang"
    ),
    "load_awaited_with_one_parity": one(COPY, "load / kRingSlots % 2", "0", PUT, sign="Race|Hang"),
    "load_expects_less": one(
        MEMORY,
        '"r"(bytes) : "memory"); asm volatile( "cp',
        '"r"(bytes - 16) : "memory"); asm volatile( "cp',
        PUT,
        "Race|Hang|Fault",
    ),
    "load_expects_more": one(
        MEMORY,
        '"r"(bytes) : "memory"); asm volatile( "cp',
        '"r"(bytes + 16) : "memory"); asm volatile( "cp',
        PUT,
        "Hang|Fault",
    ),
    "rows_not_awaited": one(COPY, "bulk_await_all();", "", "few"),
    "rows_awaited_as_read": one(COPY, "bulk_await_all();", "bulk_await_read<0>();"),
    "rows_awaited_by_one_lane": one(
        COPY, "bulk_await_all();", "if (lane_of_warp() == 0) bulk_await_all();", "read"
    ),
    "rows_of_experts_not_awaited": one(COPY, "bulk_await_all();", "", "read"),
    "rows_of_experts_awaited_as_read": one(
        COPY, "bulk_await_all();", "bulk_await_read<0>();", "read_bf16"
    ),
    "last_row_not_passed_on": without(
        COPY,
        "",
        "pass_on(team, bulk.loads - 1, bulk.newer_to, bulk.newer_bytes);",
        "",
        "few",
        "Race|differ",
    ),
    "last_but_one_not_passed_on": without(
        COPY,
        "if (lane_of_warp() == 0) {",
        "pass_on(team, bulk.loads - 2, bulk.older_to, bulk.older_bytes);",
        "",
        "few",
        "Race|differ",
    ),
    "passed_on_too_early": one(
        COPY,
        "pass_on(team, bulk.loads - 2, bulk.older_to, bulk.older_bytes); bulk_await_read",
        "pass_on(team, bulk.loads - 1, bulk.older_to, bulk.older_bytes); bulk_await_read",
        "few wide",
        "Race|Hang|differ",
    ),
    "two_slots": one(TEAM, RING, RING.replace("4", "2"), PUT),
    "three_slots": Mutant(
        (
            (TEAM, RING, RING.replace("4", "3")),
            (TEAM, BYTES_OF_SLOT, BYTES_OF_SLOT.replace(";", " / 16 * 16;")),
        ),
        PUT,
    ),
    "three_slots_of_crooked_size": one(TEAM, RING, RING.replace("4", "3"), PUT, "Fault"),
    "warps_share_slots": one(
        TEAM, "(warp() * kRingSlots + load % kRingSlots)", "(load % kRingSlots)", "wide"
    ),
    "warps_share_barriers": one(
        TEAM, "scratch_.landed + warp() * kRingSlots", "scratch_.landed", "wide", "Race|Hang|Fault"
    ),
    "teams_share_memory": one(LEAGUE, "team_memory + first * bytes,", "team_memory,", "many few"),
}
