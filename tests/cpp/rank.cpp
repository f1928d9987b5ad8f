// rank.cpp: what deep_ll/session.py does around the kernels, for one rank.
#include "rank.hpp"

#include <cstring>

#include "ep/choices.hpp"
#include "fail.hpp"

DEEP_LL_TIER_BEGIN
const Kernels& kernels();
DEEP_LL_TIER_END

namespace deep_ll {
bool python_interrupts() {
    return false;
}
}  // namespace deep_ll

namespace {

using namespace deep_ll;

Shape shape_of(const model::Sizes& sizes, int rank) {
    return {sizes.ranks,
            rank,
            sizes.experts,
            sizes.max_tokens,
            sizes.hidden,
            sizes.topk,
            static_cast<Format>(sizes.format)};
}

template <class T>
std::uint64_t address(const T* pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

// Stores and numbers of teams take turns.
CallOptions options(const World& world, int index) {
    return {.timeout_ns = world.timeout_ns, .streaming = index % 2 == 1, .small = index % 3 == 2};
}

}  // namespace

Rank::Rank(const World& world, int rank)
    : world_(world),
      rank_(rank),
      exchange_(world.heaps, rank, world.heap_bytes, world.num_teams, true, kernels()) {
    const_cast<Progress&>(exchange_.progress()) = {world.first_epoch,
                                                   world.first_epoch,
                                                   world.first_epoch,
                                                   world.first_epoch,
                                                   {world.first_epoch, world.first_epoch},
                                                   {world.first_epoch, world.first_epoch},
                                                   0};
    if (world.program.scenario.shrinks) exchange_.use_mask(address(mask_.data()));
}

void Rank::run(const Step& step) {
    switch (step.kind) {
        case Step::Kind::dispatch:
            return dispatch(step.index);
        case Step::Kind::receive:
            return receive(step.index);
        case Step::Kind::combine:
            return combine(step.index);
        case Step::Kind::reduce:
            return reduce(step.index);
    }
}

void Rank::must(bool done, const char* what, int index) const {
    if (done) return;
    const WaitReport& report = exchange_.verdict().wait;
    if (report.outcome == WaitOutcome::evicted)
        fail("rank %d, %s %d: left out by rank %u", rank_, what, index, report.missing[0]);
    const Nonsense& nonsense = exchange_.verdict().nonsense;
    if (nonsense.of != Nonsense::Of::nothing)
        fail("rank %d, %s %d: rank %d left nonsense %u at %d: %llx", rank_, what, index, nonsense.peer,
             static_cast<unsigned>(nonsense.of), nonsense.place,
             static_cast<unsigned long long>(nonsense.found));
    if (report.outcome == WaitOutcome::done)
        fail("rank %d, %s %d: rank %d speaks of something else", rank_, what, index,
             exchange_.verdict().disagreement.peer);
    fail("rank %d, %s %d, phase %u: waited too long for %u ranks to reach epoch %u (rank %u is at %u)", rank_,
         what, index, report.phase, report.num_missing, report.expected_epoch, report.missing[0],
         report.seen_epoch[0]);
}

template <class T>
T* Rank::mine(std::uint64_t offset) const {
    return reinterpret_cast<T*>(world_.heaps[static_cast<std::size_t>(rank_)] + offset);
}

void Rank::dispatch(int index) {
    Held& next = held(index);
    // Results may be read until now.
    if (next.round >= 0) check_received(next);
    const model::Round& round = world_.rounds[static_cast<std::size_t>(index)];
    const model::Tokens& tokens = round.tokens[static_cast<std::size_t>(rank_)];
    next.round = index;
    next.epoch = exchange_.progress().dispatched + 1;
    next.shape = shape_of(round.sizes, rank_);
    const auto num_local = static_cast<std::size_t>(next.shape.num_local());
    next.ledger.assign(Ledger::bytes(next.shape) / 8 + 1, 0);
    next.recv_count.assign(num_local, -1);
    next.layout_range.assign(num_local * world_.heaps.size(), -1);
    next.stats.assign(num_local, 1000);
    copy_choices({tokens.experts.data(), false, nullptr}, tokens.count, next.shape,
                 reinterpret_cast<std::int32_t*>(next.ledger.data()));
    const Batch batch{address(tokens.x.data()), tokens.count, address(next.recv_count.data()),
                      address(next.layout_range.data()), next.epoch % kSlots};
    must(exchange_.dispatch_send(next.shape, options(world_, index), address(next.ledger.data()), batch),
         "dispatch", index);
}

void Rank::receive(int index) {
    Held& now = held(index);
    const Batch batch{0, 0, address(now.recv_count.data()), address(now.layout_range.data()),
                      now.epoch % kSlots};
    must(exchange_.dispatch_receive(now.shape, options(world_, 0), address(now.ledger.data()), batch,
                                    address(now.stats.data())),
         "receive", index);
    const model::Round& round = world_.rounds[static_cast<std::size_t>(index)];
    now.arrivals.clear();
    for (int local = 0; local < now.shape.num_local(); ++local) {
        auto rows = round.arrivals[static_cast<std::size_t>(now.shape.first_local() + local)];
        std::erase_if(rows, [&](const model::Arrival& row) { return is_masked(row.source); });
        now.arrivals.push_back(std::move(rows));
    }
    check_received(now);
}

void Rank::check_received(const Held& now) const {
    for (int local = 0; local < now.shape.num_local(); ++local)
        check_expert(now, local, now.arrivals[static_cast<std::size_t>(local)]);
}

void Rank::check_expert(const Held& now, int local, const std::vector<model::Arrival>& rows) const {
    const auto count = static_cast<std::int32_t>(rows.size());
    const auto at = static_cast<std::size_t>(local);
    if (now.recv_count[at] != count || now.stats[at] != 1000 + count)
        fail("rank %d, round %d: local expert %d has %d rows, counted %d, not %d", rank_, now.round, local,
             now.recv_count[at], now.stats[at] - 1000, count);
    std::vector<std::int64_t> layout(world_.heaps.size(), 0);
    for (const model::Arrival& arrival : rows) ++layout[static_cast<std::size_t>(arrival.source)];
    for (std::size_t source = 0, begin = 0; source < layout.size(); ++source) {
        const auto expected = static_cast<std::int64_t>(begin) << 32 | layout[source];
        if (now.layout_range[at * layout.size() + source] != expected)
            fail("rank %d, round %d: layout of local expert %d, source %zu", rank_, now.round, local, source);
        begin += static_cast<std::size_t>(layout[source]);
    }
    for (std::size_t row = 0; row < rows.size(); ++row) check_row(now, local, row, rows[row]);
}

void Rank::check_row(const Held& now, int local, std::uint64_t row, model::Arrival arrival) const {
    const model::Round& round = world_.rounds[static_cast<std::size_t>(now.round)];
    const model::Tokens& tokens = round.tokens[static_cast<std::size_t>(arrival.source)];
    const RecvLayout layout = RecvLayout::carve(now.shape);
    const std::uint64_t slot = exchange_.window().recv.slot(now.epoch);
    const std::uint64_t place = now.shape.row_index(local, row), bytes = now.shape.row_bytes();
    const auto token = static_cast<std::size_t>(arrival.token);
    if (std::memcmp(mine<std::byte>(slot + layout.x + place * bytes), &tokens.rows[token * bytes], bytes) !=
        0)
        fail("rank %d, round %d: row %zu of local expert %d is not token %d of rank %d", rank_, now.round,
             static_cast<std::size_t>(row), local, arrival.token, arrival.source);
    if (mine<std::int32_t>(slot + layout.src_info)[place] != arrival.token)
        fail("rank %d, round %d: src_info of row %zu", rank_, now.round, static_cast<std::size_t>(row));
    const auto words = static_cast<std::size_t>(round.sizes.scale_words());
    const auto* scales = mine<std::uint32_t>(slot + layout.scales) + now.shape.row_index(local, 0) * words;
    for (std::size_t word = 0; word < words; ++word)
        if (scales[word * now.shape.max_rows() + row] != tokens.scales[token * words + word])
            fail("rank %d, round %d: scale %zu of row %zu", rank_, now.round, word,
                 static_cast<std::size_t>(row));
}

void Rank::write_outputs(const Held& now, const model::Answer& answer, std::byte* to) const {
    const model::Round& round = world_.rounds[static_cast<std::size_t>(now.round)];
    for (int local = 0; local < now.shape.num_local(); ++local) {
        const int expert = now.shape.first_local() + local;
        const auto& rows = now.arrivals[static_cast<std::size_t>(local)];
        for (std::size_t row = 0; row < rows.size(); ++row) {
            const auto values = model::output(round, answer, expert, rows[row]);
            std::memcpy(to + now.shape.row_index(local, row) * now.shape.bf16_bytes(), values.data(),
                        now.shape.bf16_bytes());
        }
    }
}

Answer Rank::answer_of(const Held& now, std::uint32_t epoch, bool pulled) {
    return {now.epoch % kSlots, epoch % kSlots, pulled, false, address(now.layout_range.data())};
}

void Rank::combine(int index) {
    const model::Answer& answer = world_.program.answers[static_cast<std::size_t>(index)];
    const Held& now = held(answer.round);
    Sent& next = sent_[index % 2];
    next.epoch = exchange_.progress().combined + 1;
    next.choices = model::kept_choices(world_.rounds[static_cast<std::size_t>(answer.round)], answer, rank_);
    std::vector<std::uint16_t> x;
    if (answer.pulled) {
        must(exchange_.await_credit(now.shape, options(world_, 0), next.epoch % kSlots), "await_credit",
             index);
        write_outputs(now, answer, mine<std::byte>(exchange_.window().combine.slot(next.epoch)));
    } else {
        x.assign(now.shape.num_rows() * static_cast<std::size_t>(now.shape.hidden), 0x7fc0);
        write_outputs(now, answer, reinterpret_cast<std::byte*>(x.data()));
    }
    must(exchange_.combine_send(now.shape, options(world_, index), address(now.ledger.data()),
                                answer_of(now, next.epoch, answer.pulled), address(x.data())),
         "combine", index);
}

void Rank::reduce(int index) {
    const model::Answer& answer = world_.program.answers[static_cast<std::size_t>(index)];
    const model::Round& round = world_.rounds[static_cast<std::size_t>(answer.round)];
    const model::Tokens& tokens = round.tokens[static_cast<std::size_t>(rank_)];
    const Held& now = held(answer.round);
    Sent& sent = sent_[index % 2];
    std::vector<std::uint16_t> out(static_cast<std::size_t>(tokens.count * round.sizes.hidden), 0x7fc0);
    const Sum sum{address(sent.choices.data()), address(tokens.weights.data()), address(out.data()),
                  tokens.count};
    must(exchange_.combine_receive(now.shape, options(world_, index), address(now.ledger.data()),
                                   answer_of(now, sent.epoch, answer.pulled), sum),
         "reduce", index);
    std::vector<std::int32_t> choices = sent.choices;
    for (std::int32_t& choice : choices)
        if (choice >= 0 && is_masked(now.shape.owner(choice))) choice = -1;
    if (out != model::combined(round, answer, rank_, choices))
        fail("rank %d: the sums of combine %d (of round %d) are wrong", rank_, index, answer.round);
}
