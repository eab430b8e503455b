#!/usr/bin/env bash
# Five claims of the papers at small scale on PTB (docs/results.md). Both models of a pair have
# the same seed, epochs and settings.
# Usage: DUALNET_DATA=FOLDER_WITH_ptb benchmarks/ptb_pairs.sh OUTPUT [PAIR ...]
set -euo pipefail
output=${1:?usage: benchmarks/ptb_pairs.sh OUTPUT [PAIR ...]}
shift
pairs=${*:-depth_gate layer_norm variational highway averaging}

run() { # FOLDER CARD SETTING ...
    local folder=$1 card=$2
    shift 2
    if [ ! -e "$output/$folder/results.json" ]; then
        dualnet train "$card" --corpus ptb --output "$output/$folder" --seed 1 --set "$@"
    fi
    python - "$output/$folder/results.json" "$folder" <<'PYTHON'
import json, sys
results = json.load(open(sys.argv[1]))
print(f"{sys.argv[2]:24} {results['parameters']:>9,} parameters, {results['epochs']} epochs: valid "
      f"{results['valid_perplexity']:.2f}, test {results['test_perplexity']:.2f}")
PYTHON
}

# Small settings of our own, shared by all pairs but the last.
small=(units=128 batch_size=64 sequence_length=35 learning_rate=0.004 clipnorm=1
    input_dropout=0.2 output_dropout=0.2 recurrent_dropout=0 embedding_l2=0)
for pair in $pairs; do
    case $pair in
    depth_gate)
        # The same cell, with peepholes and f = 1 - i, without and with depth gates.
        stack=("${small[@]}" epochs=2 cell=depth_gated_lstm depth=3)
        run ungated_3 lstm "${stack[@]}" depth_gated=false
        run depth_gated_3 lstm "${stack[@]}"
        ;;
    layer_norm)
        run lstm_1 lstm "${small[@]}" epochs=3
        # Without gain and shift, as in the report's best model.
        run layernorm_lstm_1 lstm "${small[@]}" epochs=3 cell=layernorm_lstm affine=false
        ;;
    variational)
        two=("${small[@]}" epochs=2 recurrent_layers=2 internal_dropout=0.2)
        run dropout_at_each_step lstm "${two[@]}" 'locked_dropouts=[]'
        run variational_dropout lstm "${two[@]}" recurrent_dropout=0.2 embedding_dropout=0.1 \
            embedding_dropout_per_row=true \
            'locked_dropouts=["input", "recurrent", "internal", "output"]'
        ;;
    highway)
        run highway_1 lstm "${small[@]}" epochs=3 cell=recurrent_highway depth=1
        run highway_4 lstm "${small[@]}" epochs=3 cell=recurrent_highway depth=4
        ;;
    averaging)
        awd=(units=128 batch_size=60 epochs=3 finetune=none learning_rate=20 embedding_dropout=0.05
            input_dropout=0.2 internal_dropout=0.1 output_dropout=0.2 weight_dropout=0.2)
        run awd_without_average awd_lstm "${awd[@]}" averaging=none
        run awd_averaged_from_2 awd_lstm "${awd[@]}" averaging=asgd average_from=2
        ;;
    esac
done
