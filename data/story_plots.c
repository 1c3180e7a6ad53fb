/* The words and the plots. Only text here; story_grammar.h explains the blanks.
 *
 * Classes share no word with each other or with the templates (a test checks it), so a checker can tell from a single
 * word which role it plays. Slots that follow "a" hold no word that would need "an".
 * Tags: @p plot, @c cause and its effect, @w who has the object in the end: friend, elder or hero. */
#include "data/story_grammar.h"

static const struct {
    const char *name, *words;
} classes[STORY_CLASSES] = {
    [STORY_HERO] = {"hero",
        "Lily Mia Anna Emma Clara Nora Ruby Ella Zoe Ivy Alice Sophie Lucy Molly Hannah Julia "
        "Maya Nina Rosa Stella Tess Vera Wendy Betty Cora Daisy Freya Greta Holly Ida Jane Kate "
        "Tom Ben Max Leo Sam Jack Finn Noah Oscar Theo Hugo Felix Adam Peter Simon Oliver "
        "Henry George Arthur Walter Victor Martin Lucas Jacob Ethan David Colin Bruno Albert Edgar Frank Ralph"},
    [STORY_FRIEND] = {"friend",
        "Bramble Pip Nutmeg Whiskers Pepper Clover Hazel Acorn Pebble Fidget Tumble Sooty Rusty Patch Bumble Twig "
        "Thistle Domino Ginger Cocoa Truffle Sprout Bubbles Scamper Nibbles Hopper Juniper Poppy Sparky Tinker Ziggy "
        "Comet"},
    [STORY_KIND] = {"kind",
        "hedgehog rabbit squirrel mouse badger beaver duckling goose kitten puppy lamb pony donkey frog toad turtle "
        "sparrow robin piglet calf mole hamster weasel fawn"},
    [STORY_TITLE] = {"title", "Farmer Captain Doctor Granny Auntie Uncle Mayor Grandpa"},
    [STORY_SURNAME] = {"surname",
        "Reed Potter Finch Holt Marsh Webb Pike Flint Harper Cooper Barker Turner Mason Parker Tucker Wells Brooks "
        "Frost Cobb Dunn Quill Bloom Thorne Baxter Hobbs Merrick Nash Rowe Sutton Todd Vance York"},
    [STORY_ADJECTIVE] = {"adj",
        "red blue green yellow purple pink white black brown grey silver golden scarlet violet turquoise lilac crimson "
        "shiny tiny striped spotted painted dusty lucky patched faded speckled sparkling checkered dainty splendid "
        "lopsided"},
    [STORY_THING] = {"thing",
        "kite drum lantern bell basket scarf hat ball boat flute key cup spoon ribbon box book blanket teapot brush "
        "clock mirror ring coin mask puppet doll pillow bottle candle map pencil feather shell marble cap glove shoe "
        "cloak belt purse bucket ladle plate comb fan flag horn harp fiddle sled wagon thimble lamp globe magnet wand "
        "crown necklace locket trumpet button satchel kettle compass"},
    [STORY_PLACE] = {"place",
        "mill bridge orchard harbor pond lake market meadow lighthouse church school barn stable castle chapel garden "
        "forest quarry bakery library tower fountain farmyard vineyard station museum ferry lagoon cave waterfall "
        "beach canal park theatre greenhouse monastery playground brewery pasture palace"},
    [STORY_SPOT] = {"spot",
        "bench haystack woodpile cupboard wheelbarrow staircase hedge fence rosebush stump barrel crate doormat sofa "
        "piano stove table wardrobe trunk cart log shed wall gate statue curtain rug bookcase pump armchair "
        "henhouse millstone"},
    [STORY_JOB] = {"job",
        "postman gardener sailor blacksmith carpenter plumber tailor cobbler shopkeeper librarian soldier dancer "
        "juggler clown beekeeper milkmaid woodcutter gatekeeper poet weaver fiddler painter baker hunter"},
    [STORY_FOOD] = {"food",
        "pancakes cherries waffles muffins dumplings noodles strawberries raspberries plums pears apples apricots "
        "peaches grapes walnuts almonds chestnuts cookies crackers pretzels buns scones tarts pies doughnuts sausages "
        "carrots radishes turnips mushrooms tomatoes beans potatoes pudding porridge soup honey jam cheese toast"},
    [STORY_TREE] = {"tree", "pine birch maple willow beech cedar poplar chestnut larch walnut fir spruce"},
    [STORY_WEATHER] = {"weather",
        "sunny rainy windy foggy snowy frosty cloudy stormy breezy misty chilly warm mild hazy drizzly bright"},
    [STORY_DAY] = {"day",
        "morning afternoon evening Monday Tuesday Wednesday Thursday Friday Saturday Sunday"},
    [STORY_TRAIT] = {"trait",
        "brave shy clever cheerful gentle curious stubborn dreamy patient merry quiet bold thoughtful playful helpful "
        "polite"},
    [STORY_DOING] = {"doing",
        "walking playing resting dancing fishing humming drawing reading skipping strolling singing giggling chatting "
        "jogging camping daydreaming"},
};

const char *story_class_name(enum StoryClass c) { return classes[c].name; }
const char *story_class_words(enum StoryClass c) { return classes[c].words; }

#define OBJECT "{adj} {thing}"
#define ELDER "{title} {surname}"
#define NEAR "[by|near|behind|beside]"
#define SUDDENLY "[Suddenly|All at once|Without warning|Just then]"

#define OPENING \
    "[One {weather} {day}, a {trait} child named {hero} was {doing} " NEAR " the {place} with a {kind} called " \
    "{friend}." \
    "|In a [cottage|cabin|hut|caravan] " NEAR " the {place} lived a {trait} child named {hero} and a {kind} called " \
    "{friend}. One {weather} {day}, they were {doing} [together|outside|as usual|in the grass]." \
    "|Once there was a {trait} child named {hero} whose best friend was a {kind} called {friend}. " \
    "One {weather} {day}, they were {doing} " NEAR " the {place}.] "

/* Something carries the object off; where it turns up tells what took it. */
#define LOST \
    "{hero} had a " OBJECT ", a [birthday|farewell|surprise|christening] present from " ELDER ". " \
    SUDDENLY ", [@c a gust of wind tore|a greedy magpie snatched|a naughty hound grabbed|a rushing brook swept] the " \
    OBJECT " away. " \
    "{hero} [sobbed|wept|turned pale|stamped {his} foot], for [nothing was dearer to {him}|{he} had promised to guard " \
    "it|it could never be replaced|{he} took it everywhere]. " \
    "{friend} looked behind the {spot} and asked a {job}, [but in vain|without any luck|but nobody knew " \
    "anything|over and over]. " \
    "[At last|Finally|Hours later|Around noon], they found the " OBJECT " [@c dangling from a {tree}|glittering in " \
    "a nest|half buried at a kennel|floating among the rushes]. " \
    "[@w {hero} [gently|gladly|joyfully|warmly] gave the " OBJECT " to {friend}" \
    "|{hero} [gently|gladly|joyfully|warmly] brought the " OBJECT " back to " ELDER \
    "|{friend} [gently|gladly|joyfully|warmly] handed the " OBJECT " back to {hero}]. "

/* A trace on the object tells whose it is. */
#define FOUND \
    "[Under|Behind] the {spot}, {hero} [noticed|uncovered|tripped over|spied] a " OBJECT ". " \
    "\"[Somebody must miss it|Its owner may be sad|It is not ours|We should ask around],\" " \
    "[said|murmured|whispered|remarked] {friend}. " \
    "There was [@c flour|ink|hay|salt] on it, and only " ELDER " [@c baked bread|wrote letters|kept horses|sailed the " \
    "sea] [in that valley|in those parts|for miles around|in the county]. " \
    "{hero} carried the " OBJECT " [across the fields|down the lane|over the hill|through the village|past the " \
    "graveyard|along the railway|up the slope|round the bend]. " \
    ELDER " [gasped|beamed|clapped|blinked], for it had been missing since [Easter|Christmas|the fair|the flood|last " \
    "week|the wedding|harvest|the holidays]. " \
    "[@w " ELDER " [proudly|kindly|solemnly|merrily] gave the " OBJECT " to {friend}" \
    "|{hero} [proudly|kindly|solemnly|merrily] gave the " OBJECT " back to " ELDER \
    "|" ELDER " [proudly|kindly|solemnly|merrily] let {hero} keep the " OBJECT "]. "

/* A quarrel spoils the object; how it is cleaned depends on where it fell. */
#define QUARREL \
    ELDER " had [left|bought|built|chosen] a " OBJECT " for them, and both wanted it [first|immediately|all " \
    "day|alone]. " \
    "{hero} pulled, {friend} [tugged|bit|kicked|scratched], and the " OBJECT " [flew|dropped|plunged|slid] into [@c a " \
    "puddle of mud|a tub of paint|a heap of soot|a bowl of syrup]. " \
    "\"[What a mess|How dreadful|Now it is spoiled|This is my fault],\" [wailed|cried|groaned|stammered] {hero}. " \
    "\"[We behaved like babies|Forgive me|I was selfish|Quarrels help nobody].\" " \
    "{hero} and {friend} [@c rinsed off the mud|scrubbed off the paint|brushed off the soot|licked off the syrup] " \
    "behind the {spot}, until the " OBJECT " [gleamed|looked like new|was clean again|sparkled]. " \
    "[@w {hero} [humbly|bravely|calmly|softly] gave the " OBJECT " to {friend}" \
    "|{hero} [humbly|bravely|calmly|softly] returned the " OBJECT " to " ELDER \
    "|{friend} [humbly|bravely|calmly|softly] let {hero} keep the " OBJECT "]. "

/* The friend is in trouble; the tool that helps depends on the trouble. */
#define RESCUE \
    "{hero} had borrowed a " OBJECT " from " ELDER " [for a parade|for a game|without a reason|for the weekend]. " \
    SUDDENLY ", {friend} [@c fell into a pit|slipped onto thin ice|got caught in thorns|got stuck on a roof] and " \
    "[screamed|squeaked|called|shouted] for help. " \
    "{hero} was too [small|weak|short|nervous] to [manage|do it] alone, so {he} waved the " OBJECT " [high in the " \
    "air|wildly|like a signal|above {his} head]. " \
    ELDER " saw it from [a window|a balcony|a rowboat|the road|a hilltop|the steps|a carriage|the dunes] and came " \
    "[running|rushing] with [@c a long rope|a broad plank|sharp scissors|a tall ladder]. " \
    "[Soon|In no time|A minute later|With one heave], {friend} was [safe|free]. " \
    "[@w " ELDER " [tenderly|quickly|simply|finally] gave the " OBJECT " to {friend}" \
    "|{hero} [tenderly|quickly|simply|finally] gave the " OBJECT " back to " ELDER \
    "|" ELDER " [tenderly|quickly|simply|finally] let {hero} keep the " OBJECT "]. "

/* A race is lost out of kindness; each sport has its manner and its mishap. */
#define RACE \
    ELDER " had promised a " OBJECT " to the winner of the [yearly|great|annual|royal] [@c " \
    "running|swimming|rowing|skating] contest. " \
    "{hero} [@c ran like a hare|swam like a fish|rowed like a pirate|skated like a swan] and was [far ahead|in the " \
    "lead|almost there|sure to win]. " \
    "Then {friend} [@c twisted an ankle|swallowed water|lost an oar|cracked a blade] and [moaned|gave up|drifted " \
    "off|looked miserable]. " \
    "{hero} [turned round|stopped|went back|hurried over] to help, and a {job} won the " OBJECT ". " \
    "\"[Kindness beats speed|A friend is worth more|Well done|There will be another race],\" [declared|announced|said|" \
    "remarked] the {job}, [deeply|truly|visibly|strangely] moved. " \
    "[@w The {job} gave the " OBJECT " to {friend}" \
    "|The {job} gave the " OBJECT " back to " ELDER \
    "|The {job} gave the " OBJECT " to {hero}], [with a bow|without regret|amid applause|to great cheers]. "

/* Work earns a present; each job has its helping hand. */
#define GIFT \
    ELDER " had been [ill|lonely|gloomy|homesick] for [days|weeks|a month|ages], so {hero} wanted to buy a " OBJECT \
    " as a comfort. " \
    "A {job} asked [nine|ten|eleven|twelve|fifteen|twenty|thirty|forty] pennies for the " OBJECT ", but {hero} had " \
    "only [two|three|four|five]. " \
    "So {he} [@c washed windows|shovelled snow|chopped firewood|raked leaves] while {friend} [@c fetched the " \
    "water|scattered the sand|stacked the logs|filled the sacks]. " \
    "By [dusk|supper|teatime|midnight], {hero} could pay, and [laughed|skipped|whistled|sang] all the way to " ELDER \
    ". " \
    "[@w " ELDER " only wanted company and [fondly|wisely|sweetly|cheerfully] gave the " OBJECT " to {friend}" \
    "|{hero} [fondly|wisely|sweetly|cheerfully] gave the " OBJECT " to " ELDER \
    "|" ELDER " only wanted company and [fondly|wisely|sweetly|cheerfully] let {hero} keep the " OBJECT "]. "

/* A bad bargain: each thing got in exchange goes the way of its kind. */
#define BARGAIN \
    "{hero} had a " OBJECT " from " ELDER ", but a {job} [talked {him} into|suggested|proposed|wanted] a swap for [@c " \
    "a jar of fireflies|a block of ice|a goldfish egg|a paper dragon]. " \
    "{hero} [agreed|nodded|shook hands|hesitated, then agreed], and the " OBJECT " was gone. " \
    "[Before long|Next day|Within an hour|At breakfast], [@c the fireflies had flown away|the ice had melted|the egg " \
    "had dried up|the dragon had burned]. " \
    "\"I was [foolish|silly|hasty|careless],\" [sighed|mumbled|admitted|muttered] {hero}. " \
    "{friend} met the {job} behind the {spot} and [told riddles|did somersaults|recited verses|pleaded], until the " \
    OBJECT " [was theirs again|came home|changed hands again|was traded back]. " \
    "[@w {hero} [eagerly|promptly|honestly|shyly] gave the " OBJECT " to {friend}" \
    "|{hero} [eagerly|promptly|honestly|shyly] returned the " OBJECT " to " ELDER \
    "|{friend} [eagerly|promptly|honestly|shyly] handed the " OBJECT " to {hero}]. "

/* A fright in the night; each noise has its harmless cause. */
#define FRIGHT \
    "{hero} was afraid of [the dark|ghosts|thunder|spiders|wolves|burglars|bats|giants], so " ELDER " lent {him} a " \
    OBJECT " for courage. " \
    "That night, something [@c rattled|howled|tapped|thumped] behind the {spot}. " \
    "{friend} [hid|shivered|froze|crouched] under [a quilt|the bed|a towel|the mattress], but {hero} " \
    "[clutched|squeezed|raised|gripped] the " OBJECT " and [crept|tiptoed|stepped|sneaked] closer. " \
    "It was only [@c a loose shutter|the wind in a pipe|a twig on the pane|a rolling pumpkin]! " \
    "\"[Fear makes noises grow|Monsters are rare|How easily we are fooled|Light chases shadows],\" " \
    "[chuckled|explained|joked|yawned] {hero}. " \
    "[@w {hero} [boldly|contentedly|eventually|willingly] gave the " OBJECT " to {friend}" \
    "|{hero} [boldly|contentedly|eventually|willingly] gave the " OBJECT " back to " ELDER \
    "|" ELDER " [boldly|contentedly|eventually|willingly] let {hero} keep the " OBJECT "]. "

#define CLOSING \
    "[Later|Afterwards|Before bedtime|To celebrate], {hero} and {friend} [shared|ate|enjoyed|tasted|cooked|nibbled|" \
    "devoured|ordered] {food} " NEAR " the {place}. " \
    "[From then on|Ever after|For many years|All winter long], the " OBJECT " [belonged to|stayed with|was treasured " \
    "by|was safe with] [@w {friend}|" ELDER "|{hero}], and {hero} [@p " \
    "never let go of a gift|returned whatever {he} found|learned to share|trusted good neighbours|never cared for medals|" \
    "was not afraid of work|made no more rash bargains|slept soundly]."

const char *story_template(void) {
    return OPENING "[@p " LOST "|" FOUND "|" QUARREL "|" RESCUE "|" RACE "|" GIFT "|" BARGAIN "|" FRIGHT "]" CLOSING;
}
