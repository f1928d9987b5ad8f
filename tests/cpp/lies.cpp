// lies.cpp: see lies.hpp. One thread is enough: a phase waits only for what ranks publish in earlier ones;
// but for `place` where ranks may be left out, which exchanges grants.
#include "lies.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "ep/choices.hpp"
#include "ep/phases.hpp"
#include "fail.hpp"
#include "lie.hpp"
#include "model.hpp"
#include "team/host/logfmt.hpp"
#include "team/host/quantize.hpp"
#include "team/host/rearrange.hpp"
#include "team/host/reduce.hpp"
#include "team/host/signal.hpp"

namespace {

using namespace deep_ll;
using namespace lies;

constexpr std::int64_t kTimeoutNs = 1'000'000;
// Of threads that wait for each other: before anybody lies, and then.
constexpr std::int64_t kLongNs = 10'000'000'000, kShortNs = 40'000'000;
constexpr std::uint64_t kMaskBytes = 64;
constexpr std::uint64_t kSlack = 16 << 10;  // of the heap, beyond what any round needs
constexpr int kRounds = 4;                  // of one set of heaps; the last but one or the last has the lie

bool not_interrupted() {
    return false;
}

// Rows of whole groups, if they travel in LogFMT.
model::Round round_for(const Way& way, std::uint64_t seed, int num_ranks) {
    for (std::uint64_t attempt = 0;; ++attempt) {
        model::Round round = model::make_round(attempt == 0 ? seed : model::mix(seed, attempt), num_ranks);
        if (!way.logfmt || round.sizes.hidden % kGroup == 0) return round;
    }
}

struct Range {
    std::uint64_t begin, end;
};

constexpr struct {
    std::string_view name;
    Way way;
} kWays[] = {
    {"lies", {}},
    {"lies_pulled", {true, false, false}},
    {"lies_logfmt", {false, true, false}},
    {"lies_shrinkable", {false, false, true}},
    {"lies_shrinkable_pulled", {true, false, true}},
};

class Lab : Scene {
   public:
    Lab(const Way& how, int num_ranks, std::uint64_t seed)
        : Scene{Dice(seed), how, std::vector<Rank>(static_cast<std::size_t>(num_ranks)), {}, {}} {
        std::uint64_t bytes = 0;
        for (int i = 0; i < kRounds; ++i) {
            rounds.push_back(round_for(how, model::mix(seed, static_cast<std::uint64_t>(i)), num_ranks));
            bytes = std::max(bytes, Window::bytes_for(shape_of(rounds.back().sizes, 0)));
        }
        bytes += kSlack;
        window = Window::carve(bytes, num_ranks);
        for (Rank& rank : ranks) {
            rank.heap.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
            std::memset(rank.heap.get(), 0, bytes);
            if (how.shrinks) rank.mask.assign(kMaskBytes, 0);
            bases.push_back(reinterpret_cast<std::uint64_t>(rank.heap.get()));
        }
    }

    End run() {
        const int lied = kRounds - 1 - dice.below(2);
        choose_lie(*this);
        for (now = 0; now < kRounds && worst() == End::none && !is_anybody_masked(); ++now)
            run_round(now == lied);
        if (worst() == End::none && wrong_ && !lie.possible)
            fail("a lie about %s (before step %d) has spoiled what rank %d got, and nobody says so", lie.of,
                 static_cast<int>(lie.moment), wrong_rank_);
        return worst();
    }

   private:
    Shape shape_of(const model::Sizes& sizes, int index) const {
        return {sizes.ranks,
                index,
                sizes.experts,
                sizes.max_tokens,
                sizes.hidden,
                sizes.topk,
                static_cast<Format>(sizes.format)};
    }
    End worst() const {
        End worst = End::none;
        for (const Rank& rank : ranks) worst = std::max(worst, rank.end);
        return worst;
    }

    bool is_anybody_masked() const {
        return std::any_of(ranks.begin(), ranks.end(), [](const Rank& rank) {
            return std::any_of(rank.mask.begin(), rank.mask.end(), [](int byte) { return byte != 0; });
        });
    }

    void run_round(bool with_lie) {
        with_lie_ = with_lie;
        for (int index = 0; index < size(); ++index) prepare(index);
        for (int step = 0; step < kSteps; ++step) {
            const auto at = static_cast<Step>(step);
            if (with_lie && at == lie.moment) tell(*this);
            if (with_lie) snapshot();
            run_on_all(at);
            if (with_lie) check_untouched(at);
            if (at == Step::unpack) each_alive([&](int index) { check_received(index); });
        }
        each_alive([&](int index) { check_sums(index); });
    }
    void run_on_all(Step step) {
        std::vector<int> failed(ranks.size(), 0);
        const auto run = [&](int index) {
            if (run_step(step, index)) return;
            failed[static_cast<std::size_t>(index)] = 1;
            // Nobody waits for it, where that can be.
            if (way.shrinks) reinterpret_cast<HeapHeader*>(rank(index).heap.get())->gone = 1;
        };
        if (way.shrinks && step == Step::place) {
            std::vector<std::thread> threads;
            each_alive([&](int index) { threads.emplace_back(run, index); });
            for (std::thread& thread : threads) thread.join();
        } else {
            each_alive(run);
        }
        for (int index = 0; index < size(); ++index)
            if (failed[static_cast<std::size_t>(index)] != 0) give_up(index);
    }

    template <class F>
    void each_alive(F f) {
        for (int index = 0; index < size(); ++index)
            if (rank(index).end == End::none) f(index);
    }

    void prepare(int index) {
        Rank& mine = rank(index);
        const model::Tokens& tokens = round().tokens[static_cast<std::size_t>(index)];
        mine.shape = shape_of(round().sizes, index);
        const auto num_local = static_cast<std::size_t>(mine.shape.num_local());
        mine.ledger.assign(Ledger::bytes(mine.shape) / 8 + 1, 0);
        mine.recv_count.assign(num_local, -1);
        mine.layout.assign(num_local * ranks.size(), -1);
        mine.sums.assign(tokens.x.size(), 0);
        mine.choices = tokens.experts;
        mine.outputs.assign(mine.shape.num_rows() * static_cast<std::size_t>(mine.shape.hidden), 0);
        copy_choices({tokens.experts.data(), false, nullptr}, tokens.count, mine.shape,
                     reinterpret_cast<std::int32_t*>(mine.ledger.data()));
    }

    void fill(Common& args, int index) {
        Rank& mine = rank(index);
        mine.verdict.disagreement.peer = -1;
        mine.verdict.wait.outcome = WaitOutcome::done;
        args.shape = mine.shape;
        args.window = window;
        std::uint8_t* mask = way.shrinks ? mine.mask.data() : nullptr;
        args.peers = {bases.data(), index, size(), nullptr, nullptr, mask, window.notes.offset};
        args.progress = &mine.progress;
        args.policy = {kTimeoutNs, 0, 0, not_interrupted};
        args.verdict = &mine.verdict;
        args.ledger = Ledger::at(reinterpret_cast<std::uint64_t>(mine.ledger.data()), mine.shape);
        args.store = Store::cached;
        args.layout_range = mine.layout.data();
        args.recv_slot = args.combine_slot = slot();
    }

    bool run_step(Step step, int index) {
        Rank& mine = rank(index);
        const model::Tokens& tokens = round().tokens[static_cast<std::size_t>(index)];
        alignas(kLine) std::byte scratch[4096];
        const HostTeam team(HostTeamState{0, 1, scratch, sizeof scratch});
        if (step >= Step::credit) {
            CombineArgs args{};
            fill(args, index);
            args.x = reinterpret_cast<const bf16*>(mine.outputs.data());
            args.choices = mine.choices.data();
            args.weights = tokens.weights.data();
            args.out = reinterpret_cast<bf16*>(mine.sums.data());
            args.num_tokens = tokens.count;
            args.pulled = way.pulled;
            args.logfmt = way.logfmt;
            return combine_step(step, team, args);
        }
        DispatchArgs args{};
        fill(args, index);
        args.x = reinterpret_cast<const bf16*>(tokens.x.data());
        args.num_tokens = tokens.count;
        args.recv_count = mine.recv_count.data();
        if (!way.shrinks || step != Step::place) return dispatch_step(step, team, args);
        args.policy = {with_lie_ ? kShortNs : kLongNs, 0, 10, not_interrupted};
        return with_lie_ && lies_while_placing(*this) && index == lie.source ? lying_place(team, args)
                                                                             : place(team, args);
    }
    // The same as place(), but that a grant becomes another before its owner says that it is there.
    bool lying_place(const HostTeam& team, const DispatchArgs& args) {
        Progress& progress = *args.progress;
        const std::uint32_t next = progress.dispatched + 1;
        const bool heard = hear(team, args, next);
        progress.dispatched = progress.received[args.recv_slot] = next;
        if (!heard) return false;
        progress.told_consumed = progress.consumed;
        adopt_views(team, args, next);
        if (!place_rows(team, args, next)) return false;
        tell_grant(*this);
        return exchange_grants(team, args, next);
    }
    static bool dispatch_step(Step step, const HostTeam& team, const DispatchArgs& args) {
        switch (step) {
            case Step::count:
                return count(team, args);
            case Step::announce:
                return announce(team, args);
            case Step::place:
                return place(team, args);
            case Step::send:
                return send(team, args);
            case Step::deliver:
                return deliver(team, args);
            case Step::rows:
                return await_rows(team, args);
            default:
                return unpack(team, args);
        }
    }
    static bool combine_step(Step step, const HostTeam& team, const CombineArgs& args) {
        switch (step) {
            case Step::credit:
                return credit(team, args);
            case Step::push:
                return push(team, args);
            case Step::offer:
                return offer(team, args);
            case Step::outputs:
                return await_outputs(team, args);
            default:
                return gather(team, args) && count_consumed(team, args);
        }
    }

    void give_up(int index) {
        Rank& mine = rank(index);
        if (!with_lie_) fail("rank %d gave up, though nobody had lied", index);
        const bool knows = mine.verdict.nonsense.of != Nonsense::Of::nothing;
        const WaitReport& wait = mine.verdict.wait;
        const int peer = knows                                 ? mine.verdict.nonsense.peer
                         : wait.outcome == WaitOutcome::beyond ? static_cast<int>(wait.missing[0])
                                                               : mine.verdict.disagreement.peer;
        mine.end = knows                                  ? End::nonsense
                   : wait.outcome == WaitOutcome::beyond  ? End::beyond
                   : wait.outcome == WaitOutcome::timeout ? End::timeout
                   : wait.outcome == WaitOutcome::evicted ? End::evicted
                                                          : End::disagreement;
        if (mine.end == End::timeout || mine.end == End::evicted || lie.possible) return;
        if (index != lie.victim || peer != lie.source)
            fail("rank %d blames rank %d of end %d, but rank %d was told %s in the name of rank %d", index,
                 peer, static_cast<int>(mine.end), lie.victim, lie.of, lie.source);
    }

    // What may be written

    void snapshot() {
        for (Rank& mine : ranks) mine.before.assign(mine.heap.get(), mine.heap.get() + window.bytes);
    }
    void check_untouched(Step step) {
        for (int index = 0; index < size(); ++index) {
            const Rank& mine = rank(index);
            std::uint64_t from = sizeof(HeapHeader);
            std::vector<Range> ranges = writable(step, mine.shape);
            ranges.push_back({window.bytes, window.bytes});
            for (const Range& range : ranges) {
                if (std::memcmp(mine.before.data() + from, mine.heap.get() + from, range.begin - from) != 0)
                    fail("step %d wrote beside its part of the heap of rank %d, after a lie about %s",
                         static_cast<int>(step), index, lie.of);
                from = range.end;
            }
        }
    }
    // In the order of the heap.
    std::vector<Range> writable(Step step, const Shape& shape) const {
        const RecvLayout layout = RecvLayout::carve(shape);
        const std::uint64_t recv = window.recv.slot(slot()), combine = window.combine.slot(slot());
        const auto returned = static_cast<std::uint64_t>(shape.max_tokens * shape.num_topk);
        const Range told{window.desks.offset, window.recv.offset};
        const Range rows{recv + layout.x, recv + layout.scales};
        switch (step) {
            case Step::send:
                return {rows};
            case Step::unpack:
                return {{recv + layout.scales, recv + layout.bytes}};
            case Step::push:
                if (way.pulled) return {};
                return {{combine, combine + returned * shape.bf16_bytes()}};
            case Step::announce:
            case Step::deliver:
            case Step::credit:
            case Step::offer:
                return {told};
            case Step::rows:  // gaps are closed
                if (way.shrinks) return {told, rows};
                return {};
            case Step::place:
            case Step::outputs:
                if (way.shrinks) return {told};
                return {};
            default:
                return {};
        }
    }

    // What must have come

    void note_wrong(int index, bool is_wrong) {
        if (!is_wrong || wrong_ || is_anybody_masked()) return;
        wrong_ = true;
        wrong_rank_ = index;
    }
    void check_received(int index) {
        Rank& mine = rank(index);
        const RecvLayout layout = RecvLayout::carve(mine.shape);
        const std::byte* recv = mine.heap.get() + window.recv.slot(slot());
        const std::uint64_t bytes = mine.shape.row_bytes();
        for (int local = 0; local < mine.shape.num_local(); ++local) {
            const int expert = mine.shape.first_local() + local;
            const auto& rows = round().arrivals[static_cast<std::size_t>(expert)];
            note_wrong(index,
                       mine.recv_count[static_cast<std::size_t>(local)] != static_cast<int>(rows.size()));
            for (std::size_t row = 0; row < rows.size(); ++row) {
                const model::Tokens& tokens = round().tokens[static_cast<std::size_t>(rows[row].source)];
                const std::uint64_t place = mine.shape.row_index(local, row);
                const auto* sent = &tokens.rows[static_cast<std::size_t>(rows[row].token) * bytes];
                note_wrong(index, std::memcmp(recv + layout.x + place * bytes, sent, bytes) != 0);
                note_wrong(index, reinterpret_cast<const std::int32_t*>(recv + layout.src_info)[place] !=
                                      rows[row].token);
                const auto values = model::output(round(), answer(), expert, rows[row]);
                std::copy(values.begin(), values.end(),
                          mine.outputs.begin() + static_cast<std::ptrdiff_t>(place) *
                                                     static_cast<std::ptrdiff_t>(mine.shape.hidden));
            }
        }
        mine.choices = model::kept_choices(round(), answer(), index);
        if (way.pulled)
            std::memcpy(mine.heap.get() + window.combine.slot(slot()), mine.outputs.data(),
                        mine.outputs.size() * sizeof(std::uint16_t));
    }
    void check_sums(int index) {
        note_wrong(index, rank(index).sums !=
                              (way.logfmt ? logfmt_sums(index)
                                          : model::combined(round(), answer(), index, rank(index).choices)));
    }
    // LogFMT itself is not in question here.
    std::vector<std::uint16_t> logfmt_sums(int index) {
        const Rank& mine = rank(index);
        const Shape& shape = mine.shape;
        const auto num_topk = static_cast<std::size_t>(shape.num_topk);
        const auto hidden = static_cast<std::size_t>(shape.hidden);
        const model::Tokens& tokens = round().tokens[static_cast<std::size_t>(index)];
        std::vector<std::uint16_t> rows(num_topk * hidden), sums(mine.sums.size());
        const std::uint64_t base = reinterpret_cast<std::uint64_t>(rows.data());
        const PeerMap here{&base, 0, 1, nullptr, nullptr, nullptr, 0};
        alignas(kLine) std::byte scratch[4096];
        const HostTeam team(HostTeamState{0, 1, scratch, sizeof scratch});
        for (std::size_t token = 0; token < static_cast<std::size_t>(tokens.count); ++token) {
            const std::int32_t* choices = mine.choices.data() + token * num_topk;
            for (std::size_t k = 0; k < num_topk; ++k) {
                if (choices[k] < 0) continue;
                const model::Arrival row{index, static_cast<int>(token)};
                const auto values = model::output(round(), answer(), choices[k], row);
                put_logfmt(team, here, {0, k * shape.bf16_bytes()},
                           reinterpret_cast<const bf16*>(values.data()), shape.hidden / kGroup,
                           Store::cached);
            }
            const auto come = team.fan(shape.num_topk, [&](int k) -> const bf16* {
                if (choices[k] < 0) return nullptr;
                return reinterpret_cast<const bf16*>(rows.data() + static_cast<std::size_t>(k) * hidden);
            });
            const auto weights = team.fan(shape.num_topk, [&](int k) {
                return tokens.weights[token * num_topk + static_cast<std::size_t>(k)];
            });
            weighted_sum_logfmt(team, reinterpret_cast<bf16*>(sums.data() + token * hidden), come, weights,
                                shape.num_topk, shape.hidden / kGroup, Store::cached);
        }
        return sums;
    }
    model::Answer answer() const { return {now, way.pulled, static_cast<std::uint64_t>(now)}; }

    bool with_lie_ = false;  // in the round at hand
    bool wrong_ = false;
    int wrong_rank_ = 0;
};

}  // namespace

bool run_lies(const std::string& name, int num_ranks, int num_rounds, std::uint64_t seed) {
    const auto way =
        std::find_if(std::begin(kWays), std::end(kWays), [&](const auto& w) { return w.name == name; });
    if (way == std::end(kWays)) return false;
    int ends[kEnds] = {};
    for (int i = 0; i < num_rounds; ++i) {
        Lab lab(way->way, num_ranks, model::mix(seed, static_cast<std::uint64_t>(i), 5));
        ++ends[static_cast<int>(lab.run())];
    }
    std::printf("harmless %d, timeouts %d, beyond %d, disagreements %d, nonsense %d, evicted %d\n", ends[0],
                ends[1], ends[2], ends[3], ends[4], ends[5]);
    return true;
}
