#!/usr/bin/env bash
# Outputs at small scale on PTB (docs/results.md). Both models of a pair have the same epochs,
# settings and seed; only the second member of the ensemble has another seed.
# Usage: DUALNET_DATA=FOLDER_WITH_ptb benchmarks/ptb_outputs.sh OUTPUT [PART ...]
set -euo pipefail
output=${1:?usage: benchmarks/ptb_outputs.sh OUTPUT [PART ...]}
shift
parts=${*:-base gate words cache ensemble softmax mixture doc dual dual_doc}
mkdir -p "$output"

train() { # FOLDER CARD OPTION ...
    local folder=$1 card=$2
    shift 2
    if [ ! -e "$output/$folder/results.json" ]; then
        dualnet train "$card" --corpus ptb --output "$output/$folder" --quiet "$@"
    fi
    show "$folder"
}

show() { # FOLDER OPTION ...
    local folder=$1
    shift
    for split in valid test; do
        echo -n "$folder $* $split: "
        dualnet evaluate "$output/$folder" --split $split "$@" | head -n 1
    done
}

small=(batch_size=64 sequence_length=35 learning_rate=0.004 clipnorm=1 units=128
    input_dropout=0.2 output_dropout=0.2 recurrent_dropout=0 internal_dropout=0.2 embedding_l2=0
    output_bias=true)
plain=("${small[@]}" recurrent_layers=2)
dual=("${small[@]}" rounds=4 rank=32 dual_input_dropout=0.2 dual_output_dropout=0.2 dual_l2=0)
mixed=(latent_dropout=0.2 balance_regularization=0.001)
for part in $parts; do
    case $part in
    base) train base lstm --epochs 3 --seed 0 --set "${plain[@]}" ;;
    gate)
        [ -e "$output/gate/results.json" ] ||
            dualnet gate "$output/base" --output "$output/gate" --quiet --epochs 2
        show gate
        ;;
    words)
        python - "$output/gate" <<'PYTHON'
import sys

import dualnet

gated = dualnet.load(sys.argv[1])
corpus = dualnet.corpora.load("ptb", vocabulary=gated.vocabulary)
favoured = dualnet.analysis.favoured_words(gated, ["of", "in", "go"], corpus_tokens=corpus.train)
for word, pairs in favoured.items():
    print(f"after {word!r}:", ", ".join(f"{favourite} {value:.3f}" for favourite, value in pairs))
PYTHON
        ;;
    cache) show base --cache size=500 weight=0.1 scale=0.3 ;;
    ensemble)
        train base_1 lstm --epochs 3 --seed 1 --set "${plain[@]}"
        [ -e "$output/ensemble" ] ||
            dualnet ensemble "$output/base" "$output/base_1" --output "$output/ensemble"
        show ensemble
        ;;
    softmax) train softmax lstm --epochs 2 --seed 0 --set "${plain[@]}" ;;
    mixture)
        train mixture lstm --epochs 2 --seed 0 --set "${plain[@]}" \
            experts=4 latent_dropout=0.2 latent_dropout_per_expert=true
        ;;
    doc) train doc lstm --epochs 2 --seed 0 --set "${plain[@]}" 'experts=[0, 1, 3]' "${mixed[@]}" ;;
    dual) train dual dual_mdlstm --epochs 1 --seed 0 --set "${dual[@]}" ;;
    dual_doc)
        train dual_doc dual_mdlstm --epochs 1 --seed 0 --set "${dual[@]}" \
            'experts=[0, 1, 0, 1]' "${mixed[@]}"
        ;;
    *)
        echo "unknown part: $part" >&2
        exit 2
        ;;
    esac
done
