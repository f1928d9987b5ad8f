// program.cpp: random programs that keep the library's rules.
#include "program.hpp"

#include <algorithm>

namespace {

constexpr Scenario kScenarios[] = {
    {"rounds", 1, 1, false, 0, 0},       // dispatch, receive, combine, receive
    {"pulled", 1, 2, false, 100, 0},     // outputs are read in place
    {"deferred", 0, 2, true, 0, 75},     // two rounds in flight, hooks late and in any order
    {"credit", 3, 6, true, 40, 75},      // combines that no dispatch separates
    {"lazy_pull", 1, 2, true, 100, 75},  // rows are read late
    {"mixed", 0, 4, true, 50, 50},
    {"shrinkable", 0, 4, true, 50, 50, true},
    {"left_announcing", 1, 2, false, 50, 50, true, "announce.peer"},
    {"left_granting", 1, 2, false, 50, 50, true, "place.peer"},
    {"left_sending", 1, 2, false, 50, 50, true, "send.row"},
    {"left_delivering", 1, 2, false, 50, 50, true, "deliver.peer"},
    {"left_pushing", 1, 2, false, 50, 50, true, "push.row"},
    {"left_offering", 1, 2, false, 50, 50, true, "offer.peer"},
};

class Steps {
   public:
    Steps(const Program& program, std::uint64_t seed) : program_(program), seed_(seed) {}

    void send(Step step) {
        demand(step);
        steps_.push_back(step);
        if (step.kind == Step::Kind::dispatch) receives_.push_back(step.index);
        if (step.kind == Step::Kind::combine) reduces_.push_back(step.index);
        while (!(receives_.empty() && reduces_.empty()) && !chance(program_.scenario.percent_lazy))
            receive_any();
    }
    std::vector<Step> finish() {
        while (!(receives_.empty() && reduces_.empty())) receive_any();
        return std::move(steps_);
    }

   private:
    bool chance(int percent) { return static_cast<int>(model::mix(seed_, ++drawn_) % 100) < percent; }

    void receive(int round) {
        const auto at = std::find(receives_.begin(), receives_.end(), round);
        if (at == receives_.end()) return;
        receives_.erase(at);
        steps_.push_back({Step::Kind::receive, round});
    }
    // Combines are finished in the order in which they were sent.
    void reduce_first() {
        steps_.push_back({Step::Kind::reduce, reduces_.front()});
        reduces_.erase(reduces_.begin());
    }
    void receive_any() {
        if (reduces_.empty() || (!receives_.empty() && chance(50)))
            receive(chance(50) ? receives_.front() : receives_.back());
        else
            reduce_first();
    }

    // What must be received before `step` may be sent: its slot's last use, and the round that it answers.
    void demand(Step step) {
        const auto round_of = [&](int answer) {
            return program_.answers[static_cast<std::size_t>(answer)].round;
        };
        if (step.kind == Step::Kind::combine) {
            receive(round_of(step.index));
            while (!reduces_.empty() && reduces_.front() <= step.index - 2) reduce_first();
            return;
        }
        receive(step.index - 2);
        const auto in_the_way = [&](int answer) { return round_of(answer) == step.index - 2; };
        while (std::any_of(reduces_.begin(), reduces_.end(), in_the_way)) reduce_first();
    }

    const Program& program_;
    std::uint64_t seed_;
    std::uint64_t drawn_ = 0;
    std::vector<int> receives_, reduces_;
    std::vector<Step> steps_;
};

}  // namespace

const Scenario* find_scenario(const std::string& name) {
    for (const Scenario& scenario : kScenarios)
        if (name == scenario.name) return &scenario;
    return nullptr;
}

Program make_program(const Scenario& scenario, int num_rounds, std::uint64_t seed) {
    Program program{scenario, {}, {}};
    std::uint64_t drawn = 0;
    const auto below = [&](int n) {
        return static_cast<int>(model::mix(seed, ++drawn, 7) % static_cast<unsigned>(n));
    };
    for (int round = 0; round < num_rounds; ++round) {
        program.sends.push_back({Step::Kind::dispatch, round});
        const int num_answers = scenario.min_answers + below(scenario.max_answers - scenario.min_answers + 1);
        for (int i = 0; i < num_answers; ++i) {
            const int answered = scenario.crossed && round > 0 && below(2) == 0 ? round - 1 : round;
            const auto key = model::mix(seed, program.answers.size(), 8);
            program.sends.push_back({Step::Kind::combine, static_cast<int>(program.answers.size())});
            program.answers.push_back({answered, below(100) < scenario.percent_pulled, key});
        }
    }
    return program;
}

std::vector<Step> steps_of(const Program& program, int rank, std::uint64_t seed) {
    Steps steps(program, model::mix(seed, static_cast<std::uint64_t>(rank), 9));
    for (const Step& step : program.sends) steps.send(step);
    return steps.finish();
}
