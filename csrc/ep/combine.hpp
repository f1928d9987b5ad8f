// combine.hpp: the experts' outputs back to the tokens' ranks, added up with weights.
//
//   push    each output row is put into the place of its token and choice at its source, in LogFMT if asked
//   offer   all of them are there; or, pulled: they lie in this rank's heap          -> signal combined
//   gather  when all signals are here: add up the rows that came, or read them where they lie
//
// A slot of the heap is written again only after every peer has read it: they say so in the signal
// `consumed`, which travels with the next dispatch's counts, or at the start of a combine if no dispatch came
// in between.
#pragma once

#include "core/logfmt.hpp"
#include "ep/shrink.hpp"

DEEP_LL_TIER_BEGIN

template <class Team>
TEAM_FN void tell_consumed(const Team& team, const Common& args) {
    const std::uint32_t consumed = args.progress->consumed;
    if (args.progress->told_consumed == consumed) return;
    const std::uint64_t desk = args.window.desk(args.shape.rank);
    publish_all(team, args.peers, {Word{desk + offsetof(Desk, consumed), consumed, 0}});
    team.sync();
    team.once([&] { args.progress->told_consumed = consumed; });
}

// The combine that must have been read by all before the slot is written again: the last one, if it used the
// slot; else the one before it, since of the others that was heard then. (Not the epoch of the slot's last
// use: after 2^31 combines that would seem to lie ahead.)
TEAM_FN std::uint32_t to_be_consumed(const Common& args) {
    const std::uint32_t last = args.progress->combined;
    return args.progress->returned[args.combine_slot] == last ? last : last - 1;
}

// The slot of the next combine is free everywhere. Nothing to wait for when a dispatch came in between.
template <class Team>
TEAM_FN bool credit(const Team& team, const Common& args) {
    tell_consumed(team, args);
    const auto signal = [&](int source) { return args.window.desk(source) + offsetof(Desk, consumed); };
    const std::uint32_t epoch = to_be_consumed(args);
    // Nobody has read what this rank has not sent.
    const std::uint32_t most_ahead = args.progress->combined - epoch;
    return await_all(team, args.peers, {static_cast<std::uint32_t>(Phase::credit), epoch, most_ahead}, signal,
                     args.policy, args.verdict->wait);
}

TEAM_FN Origin origin_of(const CombineArgs& args, std::uint64_t labels, std::uint64_t row) {
    const auto* label = args.peers.mine<std::byte>(labels + row * Label::bytes(args.shape));
    return *reinterpret_cast<const Origin*>(label + Label::origin_offset(args.shape));
}
TEAM_FN bool is_of_call(const CombineArgs& args, const Origin& origin) {
    return origin.is_inside(args.shape) && origin.dispatch == dispatch_of(args);
}
// Where an output waits that goes to a peer behind a network.
TEAM_FN std::uint64_t output_place(const CombineArgs& args, std::uint64_t row) {
    return args.window.outputs(args.combine_slot) + row * args.shape.bf16_bytes();
}

// Labels were checked when they arrived, but they lie where peers write.
template <class Team>
TEAM_FN bool push_row(const Team& team,
                      const CombineArgs& args,
                      std::uint64_t labels,
                      const RowPlace& place) {
    const Shape& shape = args.shape;
    const std::uint64_t row = shape.row_index(place.local, static_cast<std::uint64_t>(place.row));
    const Origin origin = origin_of(args, labels, row);
    if (!is_of_call(args, origin)) {
        bool right = true;
        team.once([&] { right = blame(team, args, bad_label(args, Phase::labels, place, origin)); });
        return right;
    }
    if (args.peers.is_masked(origin.source) || !is_member(team, args.peers)) return true;
    const std::uint64_t to = args.window.returned(shape, args.combine_slot, origin.choice, origin.token);
    const bf16* from = args.x + row * static_cast<std::uint64_t>(shape.hidden);
    const Place there{static_cast<int>(origin.source), to, {}, output_place(args, row)};
    if (args.logfmt)
        put_logfmt(team, args.peers, there, from, shape.hidden / kGroup, args.store);
    else
        put_row(team, args.peers, there, reinterpret_cast<const std::byte*>(from), shape.bf16_bytes(),
                args.store);
    return true;
}

// Pushed rows that wait, to peers behind a network.
template <class Team>
TEAM_FN bool ship_outputs(const Team& team, const CombineArgs& args) {
    const Shape& shape = args.shape;
    const std::uint64_t labels = args.recv() + RecvLayout::carve(shape).labels;
    const std::uint64_t bytes = args.logfmt ? logfmt_bytes(shape.hidden / kGroup) : shape.bf16_bytes();
    team.share_blocks(shape.num_local(), args.ledger.received, 1, [&](int local, int number, int) {
        const std::uint64_t row = shape.row_index(local, static_cast<std::uint64_t>(number));
        const Origin origin = origin_of(args, labels, row);
        if (!is_of_call(args, origin)) return;  // push has told of it
        const std::uint64_t to = args.window.returned(shape, args.combine_slot, origin.choice, origin.token);
        ship_from(team, args.peers,
                  {static_cast<int>(origin.source), to, {Parcel::outputs, args.progress->combined + 1}},
                  args.peers.mine<std::byte>(output_place(args, row)), bytes);
    });
    return true;
}

template <class Team>
TEAM_FN bool push(const Team& team, const CombineArgs& args) {
    if (args.pulled) return true;
    bool right = true;
    const Shape& shape = args.shape;
    const std::uint64_t labels = args.recv() + RecvLayout::carve(shape).labels;
    team.share_blocks(shape.num_local(), args.ledger.received, 1,
                      [&](int local, int row, int) { right &= push_row(team, args, labels, {local, row}); });
    settle(team);
    return right;
}

// Which dispatch is answered, where the rows are, and how they come.
TEAM_FN std::uint32_t combined_value(const CombineArgs& args) {
    return args.progress->received[args.recv_slot] << 3 | args.combine_slot << 2 | (args.logfmt ? 2u : 0u) |
           (args.pulled ? 1u : 0u);
}

template <class Team>
TEAM_FN bool offer(const Team& team, const CombineArgs& args) {
    const std::uint32_t epoch = args.progress->combined + 1;
    if (!is_member(team, args.peers, epoch, args.verdict->wait, static_cast<std::uint32_t>(Phase::outputs)))
        return false;
    const std::uint64_t signal =
        args.window.desk(args.shape.rank) + offsetof(Desk, combined) + epoch % 2 * sizeof(Signal);
    publish_all(team, args.peers, {Word{signal, epoch, combined_value(args), Parcel::outputs}});
    team.sync();
    team.once([&] {
        args.progress->combined = epoch;
        args.progress->returned[args.combine_slot] = epoch;
    });
    return true;
}

// Owners may have moved rows since they granted them: what is read in their heaps lies where rows can be.
template <class Team>
TEAM_FN bool grants_fit(const Team& team, const CombineArgs& args) {
    if (!args.pulled || !args.peers.can_shrink()) return true;
    const int bad = team.first(args.num_tokens * args.shape.num_topk, [&](int entry) {
        const int expert = args.choices[entry];
        return expert >= 0 && !is_lost(args, expert) &&
               granted_row(args, entry, expert) >= args.shape.max_rows();
    });
    if (bad < 0) return true;
    team.once([&] { blame(team, args, bad_grant(args, args.choices[bad])); });
    return false;
}

// Every peer has sent, and answers the same dispatch in the same way.
template <class Team>
TEAM_FN bool await_outputs(const Team& team, const CombineArgs& args) {
    const std::uint32_t epoch = args.progress->returned[args.combine_slot];
    const auto signal = [&](int source) {
        return args.window.desk(source) + offsetof(Desk, combined) + epoch % 2 * sizeof(Signal);
    };
    // Nobody sends into a slot that this rank has not read: there is no later epoch in this word yet.
    const Awaited awaited{static_cast<std::uint32_t>(Phase::outputs), epoch, 0, Parcel::outputs};
    if (!await_all(team, args.peers, awaited, signal, args.policy, args.verdict->wait)) return false;
    const auto value = [&](int source) { return value_of(observe(team, args.peers, signal(source))); };
    const int other = team.first(args.shape.num_ranks, [&](int source) {
        return !args.peers.is_masked(source) && value(source) != combined_value(args);
    });
    if (other < 0) return grants_fit(team, args);
    team.once([&] {
        args.verdict->disagreement = {other, Phase::outputs, {}, {}, value(other), combined_value(args)};
        args.progress->consumed = epoch;  // nothing of it will be read
    });
    return false;
}

// Null: its owner says by now that it lies where no row can be.
TEAM_FN const bf16* answer(const CombineArgs& args, int token, int choice, int expert) {
    const Shape& shape = args.shape;
    if (!args.pulled)
        return args.peers.mine<bf16>(args.window.returned(shape, args.combine_slot, choice, token));
    const int entry = token * shape.num_topk + choice;
    const std::uint64_t row =
        args.peers.can_shrink() ? granted_row(args, entry, expert) : args.ledger.row(entry, expert);
    if (row >= shape.max_rows()) return nullptr;
    return args.peers.at<bf16>(shape.owner(expert),
                               args.window.output(shape, args.combine_slot, shape.local(expert), row));
}

template <class Team>
TEAM_FN bool gather(const Team& team, const CombineArgs& args) {
    const int num_topk = args.shape.num_topk;
    team.share(args.num_tokens, [&](int token) {
        const auto rows = team.fan(num_topk, [&](int k) -> const bf16* {
            const int expert = args.choices[token * num_topk + k];
            const bool none = expert < 0 || (args.peers.can_shrink() && is_lost(args, expert));
            return none ? nullptr : answer(args, token, k, expert);
        });
        const auto weights = team.fan(num_topk, [&](int k) { return args.weights[token * num_topk + k]; });
        bf16* out = args.out + static_cast<std::int64_t>(token) * args.shape.hidden;
        if (args.logfmt)
            weighted_sum_logfmt(team, out, rows, weights, num_topk, args.shape.hidden / kGroup, args.store);
        else
            weighted_sum(team, out, rows, weights, num_topk, args.shape.hidden, args.store);
    });
    settle(team);
    return true;
}

template <class Team>
TEAM_FN bool count_consumed(const Team& team, const CombineArgs& args) {
    team.once([&] { args.progress->consumed = args.progress->returned[args.combine_slot]; });
    return is_member(team, args.peers, args.progress->combined, args.verdict->wait,
                     static_cast<std::uint32_t>(Phase::outputs));
}

DEEP_LL_TIER_END
