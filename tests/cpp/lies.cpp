// lies.cpp: see lies.hpp. One thread is enough: a phase waits only for what ranks publish in earlier ones.
#include "lies.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
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
constexpr std::uint64_t kSlack = 16 << 10;  // of the heap, beyond what any round needs
constexpr int kRounds = 4;                  // of one set of heaps; the last but one or the last has the lie

bool not_interrupted() {
    return false;
}

class Lab {
   public:
    Lab(int num_ranks, std::uint64_t seed) : dice_(seed), ranks_(static_cast<std::size_t>(num_ranks)) {
        std::uint64_t bytes = 0;
        for (int i = 0; i < kRounds; ++i) {
            rounds_.push_back(model::make_round(model::mix(seed, static_cast<std::uint64_t>(i)), num_ranks));
            bytes = std::max(bytes, Window::bytes_for(shape_of(rounds_.back().sizes, 0)));
        }
        bytes += kSlack;
        window_ = Window::carve(bytes, num_ranks);
        for (Rank& rank : ranks_) {
            rank.heap.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
            std::memset(rank.heap.get(), 0, bytes);
            bases_.push_back(reinterpret_cast<std::uint64_t>(rank.heap.get()));
        }
    }

    End run() {
        const int lied = kRounds - 1 - dice_.below(2);
        choose_lie();
        for (now_ = 0; now_ < kRounds && worst() == End::none; ++now_) run_round(now_ == lied);
        if (worst() == End::none && wrong_ && !lie_.possible)
            fail("a lie about %s (before step %d) has spoiled what rank %d got, and nobody says so", lie_.of,
                 static_cast<int>(lie_.moment), wrong_rank_);
        return worst();
    }

   private:
    int size() const { return static_cast<int>(ranks_.size()); }
    const model::Round& round() const { return rounds_[static_cast<std::size_t>(now_)]; }
    std::uint32_t slot() const { return static_cast<std::uint32_t>(now_ % 2); }
    Rank& rank(int index) { return ranks_[static_cast<std::size_t>(index)]; }

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
        for (const Rank& rank : ranks_) worst = std::max(worst, rank.end);
        return worst;
    }

    // Mostly at the moment when it is believed, else at any.
    void choose_lie() {
        static constexpr Step kMoments[] = {Step::place, Step::place,   Step::unpack,
                                            Step::push,  Step::outputs, Step::rows};
        kind_ = dice_.below(8);
        lie_.victim = dice_.below(size());
        lie_.source = (lie_.victim + 1 + dice_.below(size() - 1)) % size();
        lie_.moment = static_cast<Step>(dice_.below(kSteps));
        if (dice_.below(4) == 0) return;
        const bool of_counts = kind_ < 2 || kind_ == 6;
        const bool of_labels = kind_ == 4 || kind_ == 5;
        lie_.moment = kMoments[of_counts ? 0 : of_labels ? 2 + dice_.below(2) : 1 + dice_.below(5)];
    }

    void run_round(bool with_lie) {
        for (int index = 0; index < size(); ++index) prepare(index);
        for (int step = 0; step < kSteps; ++step) {
            const auto at = static_cast<Step>(step);
            if (with_lie && at == lie_.moment) tell();
            if (with_lie) snapshot();
            for (int index = 0; index < size(); ++index)
                if (rank(index).end == End::none && !run_step(at, index)) give_up(index, with_lie);
            if (with_lie) check_untouched(at);
            if (at == Step::unpack) each_alive([&](int index) { check_received(index); });
        }
        each_alive([&](int index) { check_sums(index); });
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
        mine.layout.assign(num_local * ranks_.size(), -1);
        mine.sums.assign(tokens.x.size(), 0);
        mine.choices = tokens.experts;
        mine.outputs.assign(mine.shape.num_rows() * static_cast<std::size_t>(mine.shape.hidden), 0);
        copy_choices({tokens.experts.data(), false, nullptr}, tokens.count, mine.shape,
                     reinterpret_cast<std::int32_t*>(mine.ledger.data()));
    }

    void fill(Common& args, int index) {
        Rank& mine = rank(index);
        mine.verdict.disagreement.peer = -1;
        args.shape = mine.shape;
        args.window = window_;
        args.peers = {bases_.data(), index, size(), nullptr, nullptr, nullptr, 0};
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
            args.pulled = false;
            return combine_step(step, team, args);
        }
        DispatchArgs args{};
        fill(args, index);
        args.x = reinterpret_cast<const bf16*>(tokens.x.data());
        args.num_tokens = tokens.count;
        args.recv_count = mine.recv_count.data();
        return dispatch_step(step, team, args);
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

    void give_up(int index, bool with_lie) {
        Rank& mine = rank(index);
        if (!with_lie) fail("rank %d gave up, though nobody had lied", index);
        const bool knows = mine.verdict.nonsense.of != Nonsense::Of::nothing;
        const WaitReport& wait = mine.verdict.wait;
        const int peer = knows                                 ? mine.verdict.nonsense.peer
                         : wait.outcome == WaitOutcome::beyond ? static_cast<int>(wait.missing[0])
                                                               : mine.verdict.disagreement.peer;
        mine.end = knows                                  ? End::nonsense
                   : wait.outcome == WaitOutcome::beyond  ? End::beyond
                   : wait.outcome == WaitOutcome::timeout ? End::timeout
                                                          : End::disagreement;
        if (mine.end == End::timeout || lie_.possible) return;
        if (index != lie_.victim || peer != lie_.source)
            fail("rank %d blames rank %d of end %d, but rank %d was told %s in the name of rank %d", index,
                 peer, static_cast<int>(mine.end), lie_.victim, lie_.of, lie_.source);
    }

    // Lies

    template <class T>
    T& at(std::uint64_t offset) {
        return *reinterpret_cast<T*>(bases_[static_cast<std::size_t>(lie_.victim)] + offset);
    }
    void tell() {
        switch (kind_) {
            case 0:
            case 1:
                return tell_count();
            case 2:
            case 3:
                return tell_signal();
            case 4:
            case 5:
                return tell_label();
            case 6:
                return tell_greeting();
            default:
                return tell_what_is_not_believed();
        }
    }
    void tell_count() {
        lie_.of = "a count";
        const Shape& shape = rank(lie_.victim).shape;
        const auto most = static_cast<std::uint64_t>(shape.max_tokens);
        const auto expert = static_cast<std::uint64_t>(dice_.below(shape.num_experts));
        auto& word = at<std::uint16_t>(window_.counts_of(static_cast<std::uint32_t>(now_ + 1), lie_.source) +
                                       2 * expert);
        word = static_cast<std::uint16_t>(dice_.spoil(word, most));
        lie_.possible = word <= most;
    }
    void tell_signal() {
        lie_.of = "a signal";
        // The one that is waited for next, or any.
        const int next = lie_.moment <= Step::place ? 0 : lie_.moment <= Step::rows ? 1 : 2 + (now_ + 1) % 2;
        const int which = dice_.below(3) == 0 ? dice_.below(5) : next;
        auto& word = at<Signal>(window_.desk(lie_.source) + 8 * static_cast<std::uint64_t>(which)).word;
        const std::uint64_t lied =
            dice_.below(2) == 0 ? dice_.next() : word + (dice_.next() % 5 + 1) * (std::uint64_t{1} << 32);
        // A step further is what the next round's word will be.
        lie_.possible = epoch_of(lied) - static_cast<std::uint32_t>(now_) <= 2;
        word = lied;
    }
    void tell_label() {
        lie_.of = "a label";
        const Shape& shape = rank(lie_.victim).shape;
        const RecvLayout layout = RecvLayout::carve(shape);
        const int row = some_row();
        auto& origin =
            at<Origin>(window_.recv.slot(slot()) + layout.labels +
                       static_cast<std::uint64_t>(row) * Label::bytes(shape) + Label::origin_offset(shape));
        const Origin was = origin;
        const std::uint64_t lied = dice_.spoil(was.word(), 0);
        std::memcpy(static_cast<void*>(&origin), &lied, sizeof lied);
        lie_.source = was.source;
        // Another token of the same source in the same place: nobody can know.
        const bool same_place = origin.source == was.source || lie_.moment > Step::unpack;
        lie_.possible = origin.is_inside(shape) && origin.dispatch == was.dispatch && same_place;
        lie_.possible = lie_.possible || lie_.source == lie_.victim;
    }
    // One that has come, if any has.
    int some_row() {
        const Rank& victim = rank(lie_.victim);
        const int local = dice_.below(victim.shape.num_local());
        const auto& rows = round().arrivals[static_cast<std::size_t>(victim.shape.first_local() + local)];
        const int num_rows =
            rows.empty() ? static_cast<int>(victim.shape.max_rows()) : static_cast<int>(rows.size());
        return static_cast<int>(
            victim.shape.row_index(local, static_cast<std::uint64_t>(dice_.below(num_rows))));
    }
    void tell_greeting() {
        lie_.of = "a greeting";
        const auto place = static_cast<std::uint64_t>((now_ + 1) % 2 * 6 + dice_.below(6));
        at<std::uint32_t>(window_.desk(lie_.source) + offsetof(Desk, greeting) + 4 * place) =
            static_cast<std::uint32_t>(dice_.spoil(0, 0xffffffff));
    }
    // How sleepers are woken, and what is written for the caller alone.
    void tell_what_is_not_believed() {
        lie_.of = "what nobody believes";
        if (dice_.below(2) == 0) {
            at<std::uint64_t>(offsetof(HeapHeader, doorbell) +
                              8 * static_cast<std::uint64_t>(dice_.below(2))) = dice_.next();
            at<std::uint64_t>(offsetof(HeapHeader, doorbell) + offsetof(Doorbell, arrived)) = dice_.next();
            return;
        }
        if (lie_.moment <= Step::unpack) return;
        const Shape& shape = rank(lie_.victim).shape;
        const auto row = static_cast<std::uint64_t>(dice_.below(static_cast<int>(shape.num_rows())));
        at<std::int32_t>(window_.recv.slot(slot()) + RecvLayout::carve(shape).src_info + 4 * row) =
            static_cast<std::int32_t>(dice_.next());
    }

    // What may be written

    void snapshot() {
        for (Rank& mine : ranks_) mine.before.assign(mine.heap.get(), mine.heap.get() + window_.bytes);
    }
    void check_untouched(Step step) {
        for (int index = 0; index < size(); ++index) {
            const Rank& mine = rank(index);
            const auto [begin, end] = writable(step, mine.shape);
            const bool same =
                std::memcmp(mine.before.data() + sizeof(HeapHeader), mine.heap.get() + sizeof(HeapHeader),
                            begin - sizeof(HeapHeader)) == 0 &&
                std::memcmp(mine.before.data() + end, mine.heap.get() + end, window_.bytes - end) == 0;
            if (!same)
                fail("step %d wrote beside its part of the heap of rank %d, after a lie about %s",
                     static_cast<int>(step), index, lie_.of);
        }
    }
    std::pair<std::uint64_t, std::uint64_t> writable(Step step, const Shape& shape) const {
        const RecvLayout layout = RecvLayout::carve(shape);
        const std::uint64_t recv = window_.recv.slot(slot()), combine = window_.combine.slot(slot());
        const auto returned = static_cast<std::uint64_t>(shape.max_tokens * shape.num_topk);
        switch (step) {
            case Step::send:
                return {recv + layout.x, recv + layout.scales};
            case Step::unpack:
                return {recv + layout.scales, recv + layout.bytes};
            case Step::push:
                return {combine, combine + returned * shape.bf16_bytes()};
            case Step::announce:
            case Step::deliver:
            case Step::credit:
            case Step::offer:
                return {window_.desks.offset, window_.recv.offset};
            default:
                return {window_.bytes, window_.bytes};
        }
    }

    // What must have come

    void note_wrong(int index, bool is_wrong) {
        if (!is_wrong || wrong_) return;
        wrong_ = true;
        wrong_rank_ = index;
    }
    void check_received(int index) {
        Rank& mine = rank(index);
        const RecvLayout layout = RecvLayout::carve(mine.shape);
        const std::byte* recv = mine.heap.get() + window_.recv.slot(slot());
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
    }
    void check_sums(int index) {
        note_wrong(index, rank(index).sums != model::combined(round(), answer(), index, rank(index).choices));
    }
    model::Answer answer() const { return {now_, false, static_cast<std::uint64_t>(now_)}; }

    Dice dice_;
    std::vector<Rank> ranks_;
    std::vector<model::Round> rounds_;
    std::vector<std::uint64_t> bases_;
    Window window_{};
    int now_ = 0;
    int kind_ = 0;
    Lie lie_{};
    bool wrong_ = false;
    int wrong_rank_ = 0;
};

}  // namespace

void run_lies(int num_ranks, int num_rounds, std::uint64_t seed) {
    int ends[5] = {};
    for (int i = 0; i < num_rounds; ++i) {
        Lab lab(num_ranks, model::mix(seed, static_cast<std::uint64_t>(i), 5));
        ++ends[static_cast<int>(lab.run())];
    }
    std::printf("harmless %d, timeouts %d, beyond %d, disagreements %d, nonsense %d\n", ends[0], ends[1],
                ends[2], ends[3], ends[4]);
}
