/* The words and the plots. Only text here; story_grammar.h explains the blanks.
 *
 * Classes share no word with each other or with the rules (a test checks it), so a checker can tell from a
 * single word which role it plays. Slots that follow "a" hold no word that would need "an".
 * Tags: @p plot, @c cause and its effect, @w who has the object in the end (friend, elder or hero). */
#include "data/story_grammar.h"

#include <string.h>

static const struct {
    const char *name, *words;
} classes[STORY_CLASSES] = {
    [STORY_HERO] = {"hero",
        "Lily Mia Anna Emma Clara Nora Ruby Ella Ivy Alice Sophie Lucy Molly Hannah Julia Rosa Stella "
        "Wendy Greta Kate Tom Ben Max Leo Sam Jack Finn Noah Oscar Theo Hugo Felix Adam Peter Simon Oliver "
        "Henry George Walter Martin"},
    [STORY_FRIEND] = {"friend",
        "Bramble Pip Nutmeg Whiskers Pepper Clover Hazel Acorn Pebble Fidget Tumble Sooty Rusty Patch "
        "Bumble Twig Thistle Domino Ginger Cocoa Truffle Bubbles Scamper Nibbles"},
    [STORY_KIND] = {"kind",
        "hedgehog rabbit squirrel mouse badger beaver duckling goose kitten puppy lamb pony donkey frog "
        "turtle sparrow robin piglet mole hamster"},
    [STORY_TITLE] = {"title", "Farmer Captain Doctor Granny Auntie Uncle Mayor Grandpa"},
    [STORY_SURNAME] = {"surname",
        "Reed Potter Finch Holt Marsh Webb Pike Flint Harper Cooper Barker Turner Mason Parker Tucker "
        "Wells Brooks Frost Quill Bloom Baxter Hobbs Nash York"},
    [STORY_ADJECTIVE] = {"adj",
        "red blue green yellow purple pink white black brown grey silver golden scarlet violet shiny tiny "
        "striped spotted painted dusty lucky patched faded splendid"},
    [STORY_THING] = {"thing",
        "kite drum lantern bell basket scarf hat ball boat flute key cup spoon ribbon box book blanket "
        "teapot brush clock mirror ring coin mask puppet doll pillow bottle candle map pencil feather "
        "shell marble glove shoe cloak bucket comb fan flag horn sled lamp wand crown trumpet compass"},
    [STORY_PLACE] = {"place",
        "mill bridge orchard harbor pond lake market meadow lighthouse church school barn stable castle "
        "chapel garden forest quarry bakery library tower fountain farmyard vineyard station museum ferry "
        "cave waterfall beach canal park"},
    [STORY_SPOT] = {"spot",
        "bench haystack woodpile cupboard wheelbarrow staircase hedge fence rosebush stump barrel crate "
        "sofa piano stove table wardrobe cart shed wall gate statue bookcase armchair"},
    [STORY_JOB] = {"job",
        "postman gardener sailor blacksmith carpenter plumber tailor cobbler shopkeeper librarian soldier "
        "dancer juggler clown beekeeper milkmaid woodcutter poet painter hunter"},
    [STORY_FOOD] = {"food",
        "pancakes cherries waffles muffins dumplings noodles strawberries raspberries plums pears apples "
        "apricots peaches grapes almonds cookies crackers pretzels buns scones tarts pies doughnuts "
        "sausages carrots mushrooms tomatoes potatoes pudding porridge soup cheese"},
    [STORY_TREE] = {"tree", "pine birch maple willow beech cedar poplar fir"},
    [STORY_WEATHER] = {"weather",
        "sunny rainy windy foggy snowy frosty cloudy stormy breezy misty chilly warm mild hazy drizzly "
        "bright"},
    [STORY_DAY] = {"day",
        "morning afternoon evening Monday Tuesday Wednesday Thursday Friday Saturday Sunday"},
    [STORY_TRAIT] = {"trait",
        "brave shy clever cheerful gentle curious stubborn dreamy patient merry quiet bold thoughtful "
        "playful helpful polite"},
    [STORY_DOING] = {"doing",
        "walking playing resting dancing fishing humming drawing reading skipping strolling singing "
        "giggling chatting jogging camping daydreaming"},
};

static const struct {
    const char *name, *text;
} rules[] = {
    {"story",
        "{opening} [@p {lost}|{found}|{quarrel}|{rescue}|{race}|{gift}|{bargain}|{fright}] {closing}"},
    {"object", "{adj} {thing}"},
    {"elder", "{title} {surname}"},
    {"near", "[by|near|behind|beside]"},
    {"suddenly", "[Suddenly|All at once|Without warning|Just then]"},
    {"opening",
        "[One {weather} {day}, a {trait} child named {hero} was {doing} {near} the {place} with a {kind} "
        "called {friend}."
        "|In a [cottage|cabin|hut|caravan] {near} the {place} lived a {trait} child named {hero} and a "
        "{kind} called {friend}. One {weather} {day}, they were {doing} [together|outside|as usual|in the "
        "grass]."
        "|Once there was a {trait} child named {hero} whose best friend was a {kind} called {friend}. One "
        "{weather} {day}, they were {doing} {near} the {place}.]"},
    {"closing",
        "[Later|Afterwards|Before bedtime|To celebrate], {hero} and {friend} "
        "[shared|ate|enjoyed|tasted|cooked|nibbled|devoured|ordered] {food} {near} the {place}. "
        "[From then on|Ever after|For many years|All winter long], the {object} [belonged to|stayed "
        "with|was treasured by|was safe with] [@w {friend}|{elder}|{hero}], "
        "and {hero} [@p never let go of a gift|returned whatever {he} found|learned to share|trusted good "
        "neighbours|never cared for medals|was not afraid of work|made no more rash bargains|slept "
        "soundly]."},

    /* Something carries the object off; where it turns up tells what took it. */
    {"lost",
        "{hero} had a {object}, a [birthday|farewell|surprise|christening] present from {elder}. "
        "{suddenly}, [@c a gust of wind tore|a greedy magpie snatched|a naughty hound grabbed|a rushing "
        "brook swept] the {object} away. "
        "{hero} [sobbed|wept|turned pale|stamped {his} foot], for [nothing was dearer to {him}|{he} had "
        "promised to guard it|it could never be replaced|{he} took it everywhere]. "
        "{friend} looked behind the {spot} and asked a {job}, [but in vain|without any luck|but nobody "
        "knew anything|over and over]. "
        "[At last|Finally|Hours later|Around noon], they found the {object} [@c dangling from a "
        "{tree}|glittering in a nest|half buried at a kennel|floating among the rushes]. "
        "[@w {hero} [gently|gladly|joyfully|warmly] gave the {object} to {friend}"
        "|{hero} [gently|gladly|joyfully|warmly] brought the {object} back to {elder}"
        "|{friend} [gently|gladly|joyfully|warmly] handed the {object} back to {hero}]."},

    /* A trace on the object tells whose it is. */
    {"found",
        "[Under|Behind] the {spot}, {hero} [noticed|uncovered|tripped over|spied] a {object}. "
        "\"[Somebody must miss it|Its owner may be sad|It is not ours|We should ask around],\" "
        "[said|murmured|whispered|remarked] {friend}. "
        "There was [@c flour|ink|hay|salt] on it, and only {elder} [@c baked bread|wrote letters|kept "
        "horses|sailed the sea] [in that valley|in those parts|for miles around|in the county]. "
        "{hero} carried the {object} [across the fields|down the lane|over the hill|through the "
        "village|past the graveyard|along the railway|up the slope|round the bend]. "
        "{elder} [gasped|beamed|clapped|blinked], for it had been missing since [Easter|Christmas|the "
        "fair|the flood|last week|the wedding|harvest|the holidays]. "
        "[@w {elder} [proudly|kindly|solemnly|merrily] gave the {object} to {friend}"
        "|{hero} [proudly|kindly|solemnly|merrily] gave the {object} back to {elder}"
        "|{elder} [proudly|kindly|solemnly|merrily] let {hero} keep the {object}]."},

    /* A quarrel spoils the object; how it is cleaned depends on where it fell. */
    {"quarrel",
        "{elder} had [left|bought|built|chosen] a {object} for them, and both wanted it "
        "[first|immediately|all day|alone]. "
        "{hero} pulled, {friend} [tugged|bit|kicked|scratched], and the {object} "
        "[flew|dropped|plunged|slid] into [@c a puddle of mud|a tub of paint|a heap of soot|a bowl of "
        "syrup]. "
        "\"[What a mess|How dreadful|Now it is spoiled|This is my fault],\" "
        "[wailed|cried|groaned|stammered] {hero}. \"[We behaved like babies|Forgive me|I was "
        "selfish|Quarrels help nobody].\" "
        "{hero} and {friend} [@c rinsed off the mud|scrubbed off the paint|brushed off the soot|licked off "
        "the syrup] behind the {spot}, until the {object} [gleamed|looked like new|was clean "
        "again|sparkled]. "
        "[@w {hero} [humbly|bravely|calmly|softly] gave the {object} to {friend}"
        "|{hero} [humbly|bravely|calmly|softly] returned the {object} to {elder}"
        "|{friend} [humbly|bravely|calmly|softly] let {hero} keep the {object}]."},

    /* The friend is in trouble; the tool that helps depends on the trouble. */
    {"rescue",
        "{hero} had borrowed a {object} from {elder} [for a parade|for a game|without a reason|for the "
        "weekend]. "
        "{suddenly}, {friend} [@c fell into a pit|slipped onto thin ice|got caught in thorns|got stuck on "
        "a roof] and [screamed|squeaked|called|shouted] for help. "
        "{hero} was too [small|weak|short|nervous] to [manage|do it] alone, so {he} waved the {object} "
        "[high in the air|wildly|like a signal|above {his} head]. "
        "{elder} saw it from [a window|a balcony|a rowboat|the road|a hilltop|the steps|a carriage|the "
        "dunes] and came [running|rushing] with [@c a long rope|a broad plank|sharp scissors|a tall "
        "ladder]. "
        "[Soon|In no time|A minute later|With one heave], {friend} was [safe|free]. "
        "[@w {elder} [tenderly|quickly|simply|finally] gave the {object} to {friend}"
        "|{hero} [tenderly|quickly|simply|finally] gave the {object} back to {elder}"
        "|{elder} [tenderly|quickly|simply|finally] let {hero} keep the {object}]."},

    /* A race is lost out of kindness; each sport has its manner and its mishap. */
    {"race",
        "{elder} had promised a {object} to the winner of the [yearly|great|annual|royal] [@c "
        "running|swimming|rowing|skating] contest. "
        "{hero} [@c ran like a hare|swam like a fish|rowed like a pirate|skated like a swan] and was [far "
        "ahead|in the lead|almost there|sure to win]. "
        "Then {friend} [@c twisted an ankle|swallowed water|lost an oar|cracked a blade] and [moaned|gave "
        "up|drifted off|looked miserable]. "
        "{hero} [turned round|stopped|went back|hurried over] to help, and a {job} won the {object}. "
        "\"[Kindness beats speed|A friend is worth more|Well done|There will be another race],\" "
        "[declared|announced|said|remarked] the {job}, [deeply|truly|visibly|strangely] moved. "
        "[@w The {job} gave the {object} to {friend}"
        "|The {job} gave the {object} back to {elder}"
        "|The {job} gave the {object} to {hero}], [with a bow|without regret|amid applause|to great "
        "cheers]."},

    /* Work earns a present; each job has its helping hand. */
    {"gift",
        "{elder} had been [ill|lonely|gloomy|homesick] for [days|weeks|a month|ages], so {hero} wanted to "
        "buy a {object} as a comfort. "
        "A {job} asked [nine|ten|eleven|twelve|fifteen|twenty|thirty|forty] pennies for the {object}, but "
        "{hero} had only [two|three|four|five]. "
        "So {he} [@c washed windows|shovelled snow|chopped firewood|raked leaves] while {friend} [@c "
        "fetched the water|scattered the sand|stacked the logs|filled the sacks]. "
        "By [dusk|supper|teatime|midnight], {hero} could pay, and [laughed|skipped|whistled|sang] all the "
        "way to {elder}. "
        "[@w {elder} only wanted company and [fondly|wisely|sweetly|cheerfully] gave the {object} to "
        "{friend}"
        "|{hero} [fondly|wisely|sweetly|cheerfully] gave the {object} to {elder}"
        "|{elder} only wanted company and [fondly|wisely|sweetly|cheerfully] let {hero} keep the {object}]."},

    /* A bad bargain: each thing got in exchange goes the way of its kind. */
    {"bargain",
        "{hero} had a {object} from {elder}, but a {job} [talked {him} into|suggested|proposed|wanted] a "
        "swap for [@c a jar of fireflies|a block of ice|a goldfish egg|a paper dragon]. "
        "{hero} [agreed|nodded|shook hands|hesitated, then agreed], and the {object} was gone. "
        "[Before long|Next day|Within an hour|At breakfast], [@c the fireflies had flown away|the ice had "
        "melted|the egg had dried up|the dragon had burned]. "
        "\"I was [foolish|silly|hasty|careless],\" [sighed|mumbled|admitted|muttered] {hero}. "
        "{friend} met the {job} behind the {spot} and [told riddles|did somersaults|recited "
        "verses|pleaded], until the {object} [was theirs again|came home|changed hands again|was traded "
        "back]. "
        "[@w {hero} [eagerly|promptly|honestly|shyly] gave the {object} to {friend}"
        "|{hero} [eagerly|promptly|honestly|shyly] returned the {object} to {elder}"
        "|{friend} [eagerly|promptly|honestly|shyly] handed the {object} to {hero}]."},

    /* A fright in the night; each noise has its harmless cause. */
    {"fright",
        "{hero} was afraid of [the dark|ghosts|thunder|spiders|wolves|burglars|bats|giants], so {elder} "
        "lent {him} a {object} for courage. "
        "That night, something [@c rattled|howled|tapped|thumped] behind the {spot}. "
        "{friend} [hid|shivered|froze|crouched] under [a quilt|the bed|a towel|the mattress], but {hero} "
        "[clutched|squeezed|raised|gripped] the {object} and [crept|tiptoed|stepped|sneaked] closer. "
        "It was only [@c a loose shutter|the wind in a pipe|a twig on the pane|a rolling pumpkin]! "
        "\"[Fear makes noises grow|Monsters are rare|How easily we are fooled|Light chases shadows],\" "
        "[chuckled|explained|joked|yawned] {hero}. "
        "[@w {hero} [boldly|contentedly|eventually|willingly] gave the {object} to {friend}"
        "|{hero} [boldly|contentedly|eventually|willingly] gave the {object} back to {elder}"
        "|{elder} [boldly|contentedly|eventually|willingly] let {hero} keep the {object}]."},
};

const char *story_class_name(enum StoryClass c) { return classes[c].name; }
const char *story_class_words(enum StoryClass c) { return classes[c].words; }

const char *story_rule(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (strlen(rules[i].name) == length && memcmp(rules[i].name, name, length) == 0) return rules[i].text;
    }
    return NULL;
}
